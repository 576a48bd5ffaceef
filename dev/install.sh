#!/usr/bin/env bash
# Installs (or upgrades) the operator with its chart into the cluster that KUBECONFIG names.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v helm >/dev/null || PATH="$("$root/dev/run" binaries helm):$PATH"
tag=${GYMTRAIN_IMAGE_TAG:-dev}
exec helm upgrade --install gymtrain "$root/charts/gymtrain" \
    --namespace gymtrain-system --create-namespace \
    --set-string image.tag="$tag" --set-string images.tag="$tag" \
    --wait --timeout 180s "$@"
