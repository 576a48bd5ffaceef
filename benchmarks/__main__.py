"""`python -m benchmarks`: runs the benchmarks one after another and prints a table; `--help` lists them."""

import argparse
import os
import sys

from benchmarks import first_step, gateway_on_cluster, http_full_on_cluster, operator_memory, preflight
from benchmarks.report import Result, as_table
from tests.support.apiserver import binary
from tests.support.kubectl import Kubectl

_ALL = {
    "first-step": first_step.measure,
    "preflight": preflight.measure,
    "operator-memory": operator_memory.measure,
    "gateway": gateway_on_cluster.measure,
    "http-full": http_full_on_cluster.measure,
}


def main() -> int:
    """Runs what was asked for; 2 without a cluster."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*_ALL, []], help=f"which: {', '.join(_ALL)} (default: all)")
    names = parser.parse_args().names or list(_ALL)
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        print("error: set KUBECONFIG to a cluster with the operator and the images (make bench does)", file=sys.stderr)
        return 2
    results: list[Result] = []
    for name in names:
        print(f"== {name}", file=sys.stderr, flush=True)
        results += _ALL[name](Kubectl(kubeconfig, f"bench-{name}", binary("kubectl")))
    print(as_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
