#!/usr/bin/env bash
# Installs (or upgrades) the operator with its chart into the cluster that KUBECONFIG names. More arguments go to helm, and
# those in HELM_FLAGS, separated by spaces.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if ! command -v helm >/dev/null; then
    PATH="$("$root/dev/run" binaries helm):$PATH"
fi
tag=${GYMTRAIN_IMAGE_TAG:-dev}
# The development images keep their tag when they change; this restarts a changed operator.
sources=$(cd "$root" && find operator uv.lock -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-12)
read -ra flags <<<"${HELM_FLAGS:-}"
# --take-ownership: of a CRD that somebody applied by hand.
exec helm upgrade --install gymtrain "$root/charts/gymtrain" \
    --namespace gymtrain-system --create-namespace \
    --set-string image.tag="$tag" --set-string images.tag="$tag" --set-string imageRegistry="${IMAGE_REGISTRY:-}" \
    --set-string podAnnotations.sources="$sources" \
    --take-ownership --wait --timeout 180s ${flags[@]+"${flags[@]}"} "$@"
