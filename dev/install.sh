#!/usr/bin/env bash
# Installs (or upgrades) the operator with its chart into the cluster that KUBECONFIG names.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH="$("$root/dev/run" bin-dir 2>/dev/null || true):$PATH"
tag=${GYMTRAIN_IMAGE_TAG:-dev}
exec helm upgrade --install gymtrain "$root/charts/gymtrain" \
    --namespace gymtrain-system --create-namespace \
    --set-string image.tag="$tag" --set-string images.tag="$tag" \
    --wait --timeout 180s "$@"
