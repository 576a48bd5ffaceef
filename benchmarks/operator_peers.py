"""What many runs at once cost gymtrain's operator, and as many RayClusters KubeRay's: time, CPU, requests, memory.

    make bench-peers PEERS_ARGS="--count 100"

Each has a kube-apiserver, etcd and controllers of its own, one after the other on the same machine; all are real. The
node is that of the tests, for both: it says of pods that they run, and answers as trainers and vLLM do. A RayCluster
has a head and a worker; a run three Gym servers, a gateway, a vLLM and a trainer, and is preflighted first. So the
figures to compare are those for each object that the operator itself makes.

A run's pods come from Deployments and a Job, whose controllers take the API server's time; a RayCluster's don't. So
the same objects are then made once more without an operator, as many at a time as it makes: what is over is its own.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
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
# What either operator makes, and what controllers make of it.
_KINDS = ",".join(
    (
        "pods",
        "replicasets",
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


def _gymtrain_node(server: ApiServer) -> FakeNode:
    return FakeNode(server, long_steps=100_000)


@contextmanager
def _gymtrain(server: ApiServer, folder: Path) -> Iterator[_Operator]:
    for crd in (CRD, DEFAULTS_CRD):
        install_crd(server, crd)
    flags = (f"--workers={_WORKERS}",)
    with (
        _gymtrain_node(server),
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


@dataclass(frozen=True)
class _Peer:
    """What is compared.

    Attributes:
        start: its operator, with a node for its pods.
        node: that node.
        manifest: of its custom resource, by number.
        plural: of that.
        settled: what its `status.state` is then.
    """

    start: Callable[[ApiServer, Path], AbstractContextManager[_Operator]]
    node: Callable[[ApiServer], FakeNode]
    manifest: Callable[[int], Object]
    plural: str
    settled: str


_PEERS = {
    "gymtrain": _Peer(_gymtrain, _gymtrain_node, _run, "gymtrainingruns", "Training"),
    "KubeRay": _Peer(_kuberay, _RayNode, _ray_cluster, "rayclusters", "ready"),
}


@contextmanager
def _cluster() -> Iterator[tuple[ApiServer, Kubectl, Path]]:
    """An API server with controllers and an empty namespace, and a folder for logs."""
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder)) as server:
        server.start_controllers()
        admin = Kubectl(str(server.kubeconfig), _NAMESPACE, binary("kubectl"))
        admin.run("create", "namespace", _NAMESPACE)
        yield server, admin, Path(folder)


def measure(name: str, count: int, seconds: float) -> list[Result]:
    """Applies `count` at once, waits until all have settled, and looks for `seconds` after that."""
    peer = _PEERS[name]
    with _cluster() as (server, admin, folder), peer.start(server, folder) as operator:
        first, asked, began = usage(operator.process), operator.asked(), time.monotonic()
        everything = "\n---\n".join(json.dumps(peer.manifest(number)) for number in range(count))
        admin.run("create", "-f", "-", stdin=everything, timeout=_SETTLED_SECONDS)
        states = ("get", peer.plural, "-o", "jsonpath={.items[*].status.state}")

        def all_settled() -> bool:
            return admin.run(*states, timeout=300).split().count(peer.settled) == count

        eventually(all_settled, f"{count} {peer.plural} are {peer.settled}", _SETTLED_SECONDS, every=_pause(count))
        took, asked = time.monotonic() - began, operator.asked() - asked
        cpu = usage(operator.process).cpu - first.cpu
        there = _items(admin, _KINDS)
        of_runs = {item["metadata"]["uid"] for item in _items(admin, peer.plural)}
        objects = [_as_made(item) for item in there if _owners(item) & of_runs]
        pods = sum(item["kind"] == "Pod" for item in there)
        at_rest = usage(operator.process)
        time.sleep(seconds)
        last, peak = usage(operator.process), resident_kib(operator.process, "VmHWM") * 1024
    bare, made = _without_operator(peer, objects, pods), len(objects)
    return [
        Result(name, f"objects that it makes for {count}", made, ""),
        Result(name, "applied to all settled", took, "s"),
        Result(name, "for each object", took / made * 1000, "ms"),
        Result(name, "the same objects without it, to all pods running", bare, "s"),
        Result(name, "what it adds, for each object", (took - bare) / made * 1000, "ms"),
        Result(name, "CPU of the operator until then", cpu, "s"),
        Result(name, "for each object", cpu / made * 1000, "ms"),
        Result(name, "requests until then, for each object", asked / made, ""),
        Result(name, "resident, before", first.resident / 1e6, "MB"),
        Result(name, "resident, after", last.resident / 1e6, "MB"),
        Result(name, "resident at most", peak / 1e6, "MB"),
        Result(name, "growth for each object", (last.resident - first.resident) / made / 1000, "KB"),
        Result(name, "share of a core, once all have settled", (last.cpu - at_rest.cpu) / seconds * 100, "%"),
    ]


def _without_operator(peer: _Peer, objects: list[Object], pods: int) -> float:
    """Seconds until all pods run of objects that are made by plain requests, `_WORKERS` at a time."""
    with _cluster() as (server, admin, _), peer.node(server):
        began = time.monotonic()
        with ThreadPoolExecutor(_WORKERS) as makers:
            parts = ("\n---\n".join(map(json.dumps, objects[n::_WORKERS])) for n in range(_WORKERS))
            make = ("create", "--validate=false", "-f", "-")
            list(makers.map(lambda part: admin.run(*make, stdin=part, timeout=_SETTLED_SECONDS), parts))
        phases = ("get", "pods", "-o", "jsonpath={.items[*].status.phase}")

        def all_run() -> bool:
            found = admin.run(*phases, timeout=300).split()
            return len(found) == pods and set(found) <= {"Running", "Succeeded"}

        eventually(all_run, f"{pods} pods run", _SETTLED_SECONDS, every=_pause(pods))
        return time.monotonic() - began


def _pause(count: int) -> float:
    """Seconds between two looks at so many objects: each takes the API server's time, too."""
    return max(0.5, count / 200)


def _items(admin: Kubectl, kinds: str) -> list[Object]:
    found: list[Object] = json.loads(admin.run("get", kinds, "-o", "json", timeout=900))["items"]
    return found


def _owners(item: Object) -> set[str]:
    return {owner["uid"] for owner in item["metadata"].get("ownerReferences") or []}


def _as_made(item: Object) -> Object:
    """An object as its maker wrote it, without what API server, scheduler and controllers add and owners that exist
    elsewhere."""
    meta, spec = item["metadata"], dict(item.get("spec") or {})
    for added in ("nodeName", "clusterIP", "clusterIPs") if spec.get("clusterIP") != "None" else ("nodeName",):
        spec.pop(added, None)
    if item["kind"] == "Job":
        del spec["selector"]
        template = spec["template"]
        kept = {key: value for key, value in template["metadata"]["labels"].items() if "controller-uid" not in key}
        spec["template"] = template | {"metadata": template["metadata"] | {"labels": kept}}
    named = {key: meta[key] for key in ("name", "labels", "annotations") if key in meta}
    rest = {key: value for key, value in item.items() if key not in ("metadata", "spec", "status")}
    return rest | {"metadata": named} | ({"spec": spec} if spec else {})


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
