#!/bin/sh
# Makes what SWE-bench's scripts expect of an image: a conda at ROOT with an environment `testbed`, which is a venv.
#
#   environment.sh ROOT REQUIREMENTS
#
# REQUIREMENTS are installed by hash. Afterwards pip never asks an index: a sandbox has no network. (pip reads the option
# no-build-isolation of a file the wrong way round: false switches the isolation off.)
set -eu
root=$1 requirements=$2
"$(dirname "$0")/conda.sh" "$root"
python3 -m venv "$root/envs/testbed"
"$root/envs/testbed/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps \
  --requirement "$requirements"
cat > "$root/envs/testbed/pip.conf" <<EOF
[global]
no-index = true
no-build-isolation = false
disable-pip-version-check = true
root-user-action = ignore
EOF
