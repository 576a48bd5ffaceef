#!/bin/sh
# uv as an image build runs it: with the secrets `ca` and `index`, where the RUN mounts them and the machine has them, and
# with its cache where the RUN mounts one, whatever HOME is. Images upon others mount this folder: /opt/uv/uv.
set -eu
export UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy UV_NO_PROGRESS=1
export UV_PROJECT_ENVIRONMENT=/opt/venv UV_PYTHON=/usr/bin/python3.13 UV_PYTHON_DOWNLOADS=never
if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi
if [ -s /run/secrets/index ]; then UV_DEFAULT_INDEX="$(cat /run/secrets/index)" && export UV_DEFAULT_INDEX; fi
exec /opt/uv/bin/uv "$@"
