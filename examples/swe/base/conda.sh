#!/bin/sh
# Makes ROOT look like a conda: `conda` knows the few words that SWE-bench's scripts and its agents use.
#
#   conda.sh ROOT
set -eu
root=$1
mkdir -p "$root/bin" "$root/etc/profile.d" "$root/envs"
cat > "$root/bin/conda" <<EOF
#!/bin/sh
case "\$*" in
  "info --base") echo "$root" ;;
  *) echo "conda: only 'conda info --base' and 'conda activate NAME' work here" >&2; exit 2 ;;
esac
EOF
chmod 755 "$root/bin/conda"
cat > "$root/etc/profile.d/conda.sh" <<EOF
conda() {
  if [ "\$1" != activate ]; then "$root/bin/conda" "\$@"; return; fi
  if [ ! -d "$root/envs/\$2" ]; then echo "conda: no environment \$2 in $root/envs" >&2; return 1; fi
  export CONDA_DEFAULT_ENV="\$2" CONDA_PREFIX="$root/envs/\$2" PATH="$root/envs/\$2/bin:\$PATH"
}
EOF
echo ". \"$root/etc/profile.d/conda.sh\"" > "$root/bin/activate"
