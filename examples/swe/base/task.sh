#!/bin/sh
# Puts a task's code in place: the source distribution of a release as a git repository with one commit, installed into
# the environment `testbed` of ROOT.
#
#   task.sh ROOT FOLDER NAME==VERSION SHA256
#
# The commit's id depends on the release alone: author and dates are fixed, so rows of a dataset can name it.
set -eu
root=$1 folder=$2 release=$3 sha256=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "$release --hash=sha256:$sha256" > "$work/requirements.txt"
# pip reads the release's metadata while it downloads, with the build tools of the environment.
env PIP_CONFIG_FILE=/dev/null "$root/envs/testbed/bin/pip" download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
  --no-binary :all: --no-build-isolation --require-hashes --dest "$work" --requirement "$work/requirements.txt"
mkdir -p "$folder"
tar --extract --gzip --strip-components=1 --no-same-owner --file "$work"/*.tar.gz --directory "$folder"
cd "$folder"
find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
git init --quiet --initial-branch=main
printf '%s\n' '*.egg-info/' '__pycache__/' '.pytest_cache/' '/build/' '/patch.txt' > .git/info/exclude
git -c core.autocrlf=false add --all --force
GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z' \
  GIT_AUTHOR_NAME=gymtrain GIT_AUTHOR_EMAIL=gymtrain@localhost \
  GIT_COMMITTER_NAME=gymtrain GIT_COMMITTER_EMAIL=gymtrain@localhost \
  git -c commit.gpgsign=false -c core.hooksPath=/dev/null commit --quiet --message "$release"
"$root/envs/testbed/bin/pip" install --quiet --no-cache-dir --no-deps --no-build-isolation --editable .
# Any user may work on it: which one a sandbox has is the cluster's choice.
chmod -R a+rwX "$folder" "$root/envs/testbed"
