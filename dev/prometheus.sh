#!/usr/bin/env bash
# Makes sure that Prometheus and promtool are there, for the tests of alerts and dashboards; prints the folder that they are in.
# Debian's package is unpacked, not installed: installed, it starts a server on every address.
set -euo pipefail
if command -v prometheus >/dev/null && found="$(command -v promtool)"; then
    dirname "$found"
    exit 0
fi
cache="${GYMTRAIN_CACHE:-$HOME/.cache/gymtrain}/prometheus"
if [ ! -x "$cache/usr/bin/promtool" ] && command -v apt-get >/dev/null; then
    echo "no Prometheus found; fetching Debian's package" >&2
    folder="$(mktemp -d)"
    trap 'rm -rf "$folder"' EXIT
    if (cd "$folder" && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }) >&2; then
        mkdir -p "$cache"
        dpkg-deb -x "$folder"/prometheus_*.deb "$cache"
    fi
fi
if [ -x "$cache/usr/bin/promtool" ]; then
    echo "$cache/usr/bin"
    exit 0
fi
cat >&2 <<'EOT'
error: no Prometheus with promtool, which the tests of alerts and dashboards need.
  looked for prometheus and promtool on the PATH
  fix: Debian: apt-get update; elsewhere: put both from a release of Prometheus, 2.42 or later, on the PATH
EOT
exit 1
