"""Trains SmolLM2-135M in three of NeMo Gym's environments, and runs the controls; an hour on two cores.

    KUBECONFIG=... python -m benchmarks.learning                      # a cluster with the operator and the images
    KUBECONFIG=... python -m benchmarks.learning --only counter --seeds 1 --kinds trained
    KUBECONFIG=... python -m benchmarks.learning --gpus --csv docs/recorded/gpu/learning.csv
    python -m benchmarks.learning --draw                              # only the table and the figure

Runs whose scores are in the CSV are not made again; a run that fails is reported, and the others go on. The figure is
beside the CSV, and so is the page that shows both, if it is there; each run's records are in --records.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning import figure, results
from benchmarks.learning.results import Score
from benchmarks.learning.runs import ENVIRONMENTS, Kind, Variant, objects
from gymtrain_client.client import Client
from gymtrain_client.errors import ClientError
from tests.support.apiserver import binary
from tests.support.kubectl import Kubectl, KubectlError

_CSV = Path(__file__).parents[2] / "docs/recorded/learning.csv"
_NAMESPACE = "learning"


def main() -> int:
    """Runs what is missing; 1 if a run failed, 2 without a cluster."""
    options = _options().parse_args()
    failed = 0
    if not options.draw:
        kubeconfig = os.environ.get("KUBECONFIG")
        if not kubeconfig:
            print("error: set KUBECONFIG to a cluster with the operator and the images", file=sys.stderr)
            return 2
        kubectl = Kubectl(kubeconfig, _NAMESPACE, binary("kubectl"))
        _namespace(kubectl)
        client = Client(namespace=_NAMESPACE, kubeconfig=kubeconfig)
        failed = _record(wanted(options.only, options.kinds, options.seeds), options, kubectl, client)
    scores = results.read(options.csv)
    print(results.table(scores))
    drawn, page = options.csv.with_suffix(".svg"), options.csv.with_suffix(".md")
    if scores:
        figure.draw(scores, drawn)
    if page.exists():
        page.write_text(results.page(page.read_text(), scores, drawn.name))
    return int(failed > 0)


def wanted(environments: Sequence[str], kinds: Sequence[Kind], seeds: Sequence[int]) -> list[Variant]:
    """The runs, those that tell most first: each environment trained, then its controls, then further seeds.

    Controls have the first seed alone.
    """
    trained = [Variant(name, Kind.TRAINED, seed) for seed in seeds for name in environments if Kind.TRAINED in kinds]
    controls = [Variant(name, kind, seeds[0]) for kind in kinds if kind is not Kind.TRAINED for name in environments]
    return trained[: len(environments)] + controls + trained[len(environments) :]


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS), metavar="ENVIRONMENT")
    parser.add_argument("--kinds", nargs="+", type=Kind, choices=list(Kind), default=list(Kind))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--gpus", action="store_true", help="vLLM on one GPU, the trainer on another")
    parser.add_argument("--steps", type=int, help="of the optimizer; 20 unless it is said")
    parser.add_argument("--csv", type=Path, default=_CSV)
    parser.add_argument("--records", type=Path, default=Path("out/learning"))
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of a run")
    parser.add_argument("--draw", action="store_true", help="run nothing")
    return parser


def _record(variants: Sequence[Variant], options: argparse.Namespace, kubectl: Kubectl, client: Client) -> int:
    """Makes the runs that the CSV lacks; how many failed."""
    failed = 0
    for variant in variants:
        if variant in results.by_variant(results.read(options.csv)):
            print(f"{variant.name}: in {options.csv}", flush=True)
            continue
        began = time.monotonic()
        try:
            scores = _run(variant, options, kubectl, client)
        except (ClientError, KubectlError) as error:
            failed += 1
            print(f"{variant.name}: {error}\n{kubectl.describe_pods(variant.name)}", file=sys.stderr, flush=True)
            continue
        finally:
            kubectl.run("delete", "gtr", variant.name, "--ignore-not-found", "--timeout=120s", timeout=150)
        results.write(options.csv, [*results.read(options.csv), *scores])
        print(f"{variant.name}: {time.monotonic() - began:.0f} s", flush=True)
        print(results.table(scores), flush=True)
    return failed


def _run(variant: Variant, options: argparse.Namespace, kubectl: Kubectl, client: Client) -> list[Score]:
    *rows, run = objects(variant, on_gpus=options.gpus, steps=options.steps)
    kubectl.run("delete", "gtr", variant.name, "--ignore-not-found", "--timeout=120s", timeout=150)
    for one in rows:
        # Not applied: kubectl would note all of it once more, and too much for an annotation.
        kubectl.run("delete", "configmap", one["metadata"]["name"], "--ignore-not-found")
        kubectl.run("create", "-f", "-", stdin=json.dumps(one))
    made = client.submit(run)
    made.wait(options.timeout)
    scores = results.scores_of(variant, made.trainer_log())
    if variant.kind is not Kind.UNTRAINED:
        made.fetch("records", options.records / variant.name)
    return scores


def _namespace(kubectl: Kubectl) -> None:
    """Under restricted Pod Security; what is in it stays."""
    if not kubectl.run("get", "namespace", kubectl.namespace, "--ignore-not-found"):
        kubectl.run("create", "namespace", kubectl.namespace)
        kubectl.run("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")


if __name__ == "__main__":
    sys.exit(main())
