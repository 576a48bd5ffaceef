#!/usr/bin/env bash
# Installs (or upgrades) the operator with its chart into the cluster that KUBECONFIG names. More arguments go to helm, and
# those in HELM_FLAGS, separated by spaces. HELM_TIMEOUT: the seconds that helm waits for the operator to be ready.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if ! command -v kubectl >/dev/null || ! command -v helm >/dev/null; then
    PATH="$("$root/dev/run" binaries kubernetes helm):$PATH"
fi
namespace=gymtrain-system
timeout=${HELM_TIMEOUT:-180}
tag=${GYMTRAIN_IMAGE_TAG:-dev}
# The development images keep their tag when they change; this restarts a changed operator.
sources=$(cd "$root" && find operator uv.lock -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-12)
read -ra flags <<<"${HELM_FLAGS:-}"

# A helm that was killed leaves its release pending, and every later one then says that another operation is in progress. No
# helm of this script lives longer than it may wait: a release that is pending still belongs to nobody.
pending() {
    kubectl --namespace "$namespace" get secrets --output name \
        --selector 'owner=helm,name=gymtrain,status in (pending-install,pending-upgrade,pending-rollback)'
}
if [ -n "$(pending)" ]; then
    echo "another helm installs the operator, or was killed at it: waiting $timeout s at most" >&2
    deadline=$((SECONDS + timeout))
    while [ -n "$(pending)" ] && ((SECONDS < deadline)); do sleep 1; done
    for release in $(pending); do
        kubectl --namespace "$namespace" delete --ignore-not-found "$release" >&2
    done
fi

# --take-ownership: of a CRD that somebody applied by hand, or of what a helm that was killed had made.
exec helm upgrade --install gymtrain "$root/charts/gymtrain" \
    --namespace "$namespace" --create-namespace \
    --set-string image.tag="$tag" --set-string images.tag="$tag" --set-string imageRegistry="${IMAGE_REGISTRY:-}" \
    --set-string podAnnotations.sources="$sources" \
    --take-ownership --wait --timeout "${timeout}s" ${flags[@]+"${flags[@]}"} "$@"
