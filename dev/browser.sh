#!/usr/bin/env bash
# Makes sure that Chromium and its driver are there, for the tests of the report's page; prints the driver's path.
set -euo pipefail
find_driver() { command -v chromedriver && { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; }
if find_driver; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Chromium found; trying apt-get install chromium chromium-driver" >&2
    if apt-get update -qq >&2 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >&2 &&
        find_driver; then exit 0; fi
fi
cat >&2 <<'EOF'
error: no Chromium with its driver, which the tests of the report's page need.
  looked for chromedriver, and chromium, chromium-browser or google-chrome, on the PATH
  fix: Debian: apt-get install chromium chromium-driver; elsewhere: install Chrome and the chromedriver of its version
EOF
exit 1
