#!/usr/bin/env bash
# Prints the path of a Python 3.13 that really runs. A `python3.13` on the PATH may be a pyenv
# shim that only prints advice, so each candidate is executed before it is believed.
set -euo pipefail

runs() { "$1" -c 'import sys, ssl, venv; sys.exit(sys.version_info[:2] != (3, 13))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in "${GYMTRAIN_PYTHON:-}" "$(command -v python3.13 || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python3.13 /usr/bin/python3.13 /usr/local/bin/python3.13; do
        if [ -n "$candidate" ] && [ -x "$candidate" ] && runs "$candidate"; then
            # The shim's target, not the shim: uv and venvs record this path.
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

if find_python; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no working Python 3.13 found; trying apt-get install python3.13" >&2
    if apt-get update -qq >&2 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3.13 python3.13-venv >&2 &&
        find_python; then exit 0; fi
fi
cat >&2 <<'EOF'
error: no working Python 3.13.
  looked at $GYMTRAIN_PYTHON, python3.13 on the PATH, pyenv's versions/3.13*, /usr/bin and /usr/local/bin
  fix: Debian 13: apt-get install python3.13 python3.13-venv; elsewhere: pyenv install 3.13,
       or set GYMTRAIN_PYTHON to an interpreter of version 3.13 that has the ssl and venv modules.
EOF
exit 1
