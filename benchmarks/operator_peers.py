"""What many runs at once cost gymtrain's operator, and as many RayClusters KubeRay's: time, CPU, requests, memory.

    python -m benchmarks.operator_peers --count 100         # after `dev/run binaries`, `dev/run binaries kuberay`

Each has a kube-apiserver, etcd and controllers of its own, one after the other on the same machine; all are real. The
node is that of the tests, for both: it says of pods that they run, and answers as trainers and vLLM do. A RayCluster
has a head and a worker; a run three Gym servers, a gateway, a vLLM and a trainer, and is preflighted first. So the
figures to compare are those for each object that the operator itself makes.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway_process import resident_kib
from benchmarks.processes import usage
from benchmarks.report import Result, as_table
from gymtrain_api import labels
from tests.support.apiserver import ApiServer, binary, free_port
from tests.support.fakenode import FakeNode, Player
from tests.support.go_controller import install_crds, wait_until_ready
from tests.support.install import CRD, DEFAULTS_CRD, install_crd
from tests.support.kubectl import Kubectl, eventually
from tests.support.operator import OperatorProcess, read_metrics
from tests.support.specs import played_run

_NAMESPACE = "bench"
_SETTLED_SECONDS = 7200.0  # of a thousand on a machine with other work
_WORKERS = 8  # of both
# What either operator makes.
_KINDS = ",".join(
    (
        "pods",
        "services",
        "configmaps",
        "secrets",
        "serviceaccounts",
        "persistentvolumeclaims",
        "deployments",
        "jobs",
        "networkpolicies",
        "roles",
        "rolebindings",
        "poddisruptionbudgets",
    )
)

type Object = dict[str, Any]


@dataclass(frozen=True)
class _Operator:
    """A running operator.

    Attributes:
        process: its id.
        requests: the counter of its requests among its metrics.
        port: of its metrics.
    """

    process: int
    requests: str
    port: int

    def asked(self) -> float:
        """Requests to the API server since its start."""
        found = read_metrics(self.port)
        return sum(value for name, value in found.items() if name.startswith(f"{self.requests}{{"))


class _RayNode(FakeNode):
    """Plays the pods of RayClusters: they run."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.selector = "labelSelector=ray.io%2Fcluster"

    def player(self, pod: Object) -> Player:
        """As that of a Gym server."""
        meta = pod["metadata"]
        dressed = meta["labels"] | {labels.RUN: meta["labels"]["ray.io/cluster"], labels.ROLE: labels.Role.GYM}
        return super().player(pod | {"metadata": meta | {"labels": dressed}})


def _run(number: int) -> Object:
    return played_run(f"long-{number}")


def _ray_cluster(number: int) -> Object:
    def group(name: str) -> Object:
        return {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": name, "image": "ray:2.52.0"}]}}}

    workers = group("ray-worker") | {"groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": f"ray-{number}"},
        "spec": {"rayVersion": "2.52.0", "headGroupSpec": group("ray-head"), "workerGroupSpecs": [workers]},
    }


@contextmanager
def _gymtrain(server: ApiServer, folder: Path) -> Iterator[_Operator]:
    for crd in (CRD, DEFAULTS_CRD):
        install_crd(server, crd)
    flags = (f"--workers={_WORKERS}",)
    with (
        FakeNode(server, long_steps=100_000),
        OperatorProcess(server.kubeconfig, folder / "gymtrain.log", *flags) as operator,
    ):
        yield _Operator(operator.process.pid, "gymtrain_operator_api_requests_total", operator.port)


@contextmanager
def _kuberay(server: ApiServer, folder: Path) -> Iterator[_Operator]:
    install_crds(server, "kuberay", "kuberay.yaml", "KubeRay")
    metrics, health = free_port(), free_port()
    with _RayNode(server):
        process = server.run(
            "ray-operator",
            f"--kubeconfig={server.kubeconfig}",
            f"--metrics-addr=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{health}",
            "--enable-leader-election=false",
            f"--reconcile-concurrency={_WORKERS}",
        )
        wait_until_ready(health, "KubeRay")
        yield _Operator(process.pid, "rest_client_requests_total", metrics)


_PEERS = {
    "gymtrain": (_gymtrain, _run, "gymtrainingruns", "Training"),
    "KubeRay": (_kuberay, _ray_cluster, "rayclusters", "ready"),
}


def measure(peer: str, count: int, seconds: float) -> list[Result]:
    """Applies `count` at once, waits until all have settled, and looks for `seconds` after that."""
    start, manifest, plural, settled = _PEERS[peer]
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder)) as server:
        server.start_controllers()
        admin = Kubectl(str(server.kubeconfig), _NAMESPACE, binary("kubectl"))
        admin.run("create", "namespace", _NAMESPACE)
        with start(server, Path(folder)) as operator:
            first, asked, began = usage(operator.process), operator.asked(), time.monotonic()
            everything = "\n---\n".join(json.dumps(manifest(number)) for number in range(count))
            admin.run("create", "-f", "-", stdin=everything, timeout=_SETTLED_SECONDS)
            states = ("get", plural, "-o", "jsonpath={.items[*].status.state}")

            def all_settled() -> bool:
                return admin.run(*states, timeout=300).split().count(settled) == count

            eventually(all_settled, f"{count} {plural} are {settled}", _SETTLED_SECONDS, every=max(1.0, count / 100))
            took, asked = time.monotonic() - began, operator.asked() - asked
            cpu = usage(operator.process).cpu - first.cpu
            made = _made(admin, plural, manifest(0)["metadata"]["name"]) * count
            at_rest = usage(operator.process)
            time.sleep(seconds)
            last, peak = usage(operator.process), resident_kib(operator.process, "VmHWM") * 1024
    return [
        Result(peer, f"objects that it makes for {count}", made, ""),
        Result(peer, "applied to all settled", took, "s"),
        Result(peer, "for each object", took / made * 1000, "ms"),
        Result(peer, "CPU of the operator until then", cpu, "s"),
        Result(peer, "for each object", cpu / made * 1000, "ms"),
        Result(peer, "requests until then, for each object", asked / made, ""),
        Result(peer, "resident, before", first.resident / 1e6, "MB"),
        Result(peer, "resident, after", last.resident / 1e6, "MB"),
        Result(peer, "resident at most", peak / 1e6, "MB"),
        Result(peer, "growth for each object", (last.resident - first.resident) / made / 1000, "KB"),
        Result(peer, "share of a core, once all have settled", (last.cpu - at_rest.cpu) / seconds * 100, "%"),
    ]


def _made(admin: Kubectl, plural: str, name: str) -> int:
    """How many objects have that custom resource as their owner."""
    uid = admin.get(plural, name)["metadata"]["uid"]
    found = json.loads(admin.run("get", _KINDS, "-o", "json", timeout=900))["items"]
    return sum(any(one["uid"] == uid for one in item["metadata"].get("ownerReferences") or []) for item in found)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operator_peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60, help="how long to look at all that settled (default: 60)")
    parser.add_argument("--only", nargs="+", choices=list(_PEERS), default=list(_PEERS))
    options = parser.parse_args()
    results: list[Result] = []
    for peer in options.only:
        found = measure(peer, options.count, options.seconds)
        print(as_table(found), flush=True)
        results += found
    print(as_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
