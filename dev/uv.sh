#!/usr/bin/env bash
# Prints the path of uv: the one on the PATH if it is new enough, else one installed from PyPI into a small venv of its own in the
# cache. Callers must name the interpreter (`uv sync --python "$(dev/python.sh)"`): pyenv's shims mislead uv.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirement=$here/../images/python-build/uv.txt # with hashes
version=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' "$requirement")
# An older one can't read pyproject.toml (exclusions of one package's dependencies).
if path=$(command -v uv) && found=$("$path" --version 2>/dev/null | awk '{print $2}') &&
    [ "$(printf '%s\n' "$version" "$found" | sort -V | head -n 1)" = "$version" ]; then
    echo "$path"
    exit 0
fi
venv="${GYMTRAIN_CACHE:-$HOME/.cache/gymtrain}/uv-$version"
if ! "$venv/bin/uv" --version >/dev/null 2>&1; then
    python=$("$here/python.sh")
    mkdir -p "$(dirname "$venv")"
    # A venv cannot be renamed into place (its scripts hold its path), so a lock and the check above
    # keep a half-made one from being used.
    exec 9>"$venv.lock"
    flock 9
    if ! "$venv/bin/uv" --version >/dev/null 2>&1; then
        rm -rf "$venv"
        "$python" -m venv "$venv" >&2
        "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$requirement" >&2
    fi
fi
echo "$venv/bin/uv"
