#!/usr/bin/env bash
# The quickstart, from nothing to a reward curve: cluster, images, operator, one apply, live progress, curve.
# Safe to run again: a run in progress is watched further, an ended one is replaced.
#
# On an existing cluster (KUBECONFIG or CONTEXT): push the images first (images/README.md), and set IMAGE_REGISTRY to their
# prefix, such as registry.example.com/, and GYMTRAIN_IMAGE_TAG to their tag.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
namespace=${DEMO_NAMESPACE:-gymtrain-demo}
example=${DEMO_EXAMPLE:-examples/quickstart.yaml}
deadline=${DEMO_TIMEOUT:-3600}
began=$SECONDS
step() { printf '\n==> [%4ds] %s\n' "$((SECONDS - began))" "$*"; }

step "a Kubernetes cluster, and beside it the images that $example needs"
dev/run cluster-up --images-for "$example"
KUBECONFIG=$(dev/run kubeconfig)
export KUBECONFIG
if ! command -v kubectl >/dev/null || ! command -v helm >/dev/null; then
    PATH="$(dev/run binaries kubernetes helm):$PATH"
fi

step "the command line"
uv=$(dev/uv.sh)
"$uv" sync --quiet --python "$(dev/python.sh)" --locked --extra operator --extra cli --group dev
gymtrain=("$root/.venv/bin/gymtrain" --namespace "$namespace")

step "the operator: helm upgrade --install gymtrain charts/gymtrain"
dev/install.sh >/dev/null
echo "operator is up"

run=$("$root/.venv/bin/python" -c 'import sys, yaml
print(next(d["metadata"]["name"] for d in yaml.safe_load_all(open(sys.argv[1])) if d["kind"] == "GymTrainingRun"))' "$example")
kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
state=$(kubectl -n "$namespace" get gtr "$run" -o 'jsonpath={.status.state}' 2>/dev/null || true)
if [ "$state" = Complete ] || [ "$state" = Failed ]; then
    step "replacing the run that ended before ($state)"
    kubectl -n "$namespace" delete gtr "$run" --wait --timeout=120s
    kubectl -n "$namespace" wait --for=delete pods -l "gymtrain.dev/run=$run" --timeout=120s
fi

step "kubectl apply -n $namespace -f $example"
sed "s|oci://gymtrain/\([a-z0-9-]*\):dev|oci://${IMAGE_REGISTRY:-}gymtrain/\1:${GYMTRAIN_IMAGE_TAG:-dev}|" "$example" | kubectl apply -n "$namespace" -f -
outcome=0
"${gymtrain[@]}" watch "$run" --timeout "$deadline" || outcome=$?
if [ "$outcome" != 0 ]; then
    step "the run did not complete; this is what the cluster says"
    kubectl -n "$namespace" get gtr,pods -o wide
    kubectl -n "$namespace" get gtr "$run" -o 'jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}'
    exit 1
fi

step "the reward curve, and the report"
mkdir -p out
"${gymtrain[@]}" curve "$run" --png "out/$run.png"
"${gymtrain[@]}" report "$run" --output "out/$run.html"
kubectl -n "$namespace" get gtr
cat <<EOF

Done in $((SECONDS - began)) s. What to look at next:
  out/$run.html                           the report: curves, evaluations, and what was said in each rollout
  export KUBECONFIG=$KUBECONFIG
  kubectl -n $namespace describe gtr $run             conditions and events
  kubectl -n $namespace logs job/$run-trainer-1       one JSON line per step
  $example                          the run that you saw; change it and apply it again
  docs/quickstart.md                                  the same, explained
  make demo-down                                      removes all of this
EOF
