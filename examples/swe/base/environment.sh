#!/bin/sh
# Makes what SWE-bench's scripts expect of an image: a conda at ROOT with an environment `testbed`.
#
#   environment.sh ROOT REQUIREMENTS
#
# There is no conda in it: `testbed` is a venv, and `conda` knows the few words that evaluation scripts and agents use.
# REQUIREMENTS are installed by hash. Afterwards pip never asks an index: a sandbox has no network.
set -eu
root=$1 requirements=$2
python3 -m venv "$root/envs/testbed"
"$root/envs/testbed/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps \
  --requirement "$requirements"
cat > "$root/envs/testbed/pip.conf" <<EOF
[global]
no-index = true
disable-pip-version-check = true
root-user-action = ignore
no-build-isolation = true
EOF
mkdir -p "$root/bin" "$root/etc/profile.d"
cat > "$root/bin/conda" <<EOF
#!/bin/sh
case "\$*" in
  "info --base") echo "$root" ;;
  *) echo "conda: only 'conda info --base' and 'conda activate NAME' work here" >&2; exit 2 ;;
esac
EOF
cat > "$root/etc/profile.d/conda.sh" <<EOF
conda() {
  if [ "\$1" != activate ]; then "$root/bin/conda" "\$@"; return; fi
  if [ ! -d "$root/envs/\$2" ]; then echo "conda: no environment \$2 in $root/envs" >&2; return 1; fi
  export CONDA_DEFAULT_ENV="\$2" CONDA_PREFIX="$root/envs/\$2" PATH="$root/envs/\$2/bin:\$PATH"
}
EOF
cat > "$root/bin/activate" <<EOF
. "$root/etc/profile.d/conda.sh"
EOF
chmod 755 "$root/bin/conda"
