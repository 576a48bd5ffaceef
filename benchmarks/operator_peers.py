"""What many runs at once cost gymtrain's operator, and as many RayClusters KubeRay's: time, CPU, requests, memory.

    python -m benchmarks.operator_peers --count 100         # after `dev/run binaries`, `dev/run binaries kuberay`

Each has a kube-apiserver, etcd and controllers of its own, one after the other on the same machine; all are real. The
node is that of the tests, for both: it says of pods that they run, and answers as trainers and vLLM do. A RayCluster
has a head and a worker; a run three Gym servers, a gateway, a vLLM and a trainer, and is preflighted first. So the
figures to compare are those for each object that the operator itself makes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Result, as_table
from gymtrain_api import labels
from tests.support.apiserver import ApiServer, binary, document, free_port
from tests.support.fakenode import FakeNode, Player
from tests.support.install import CRD, DEFAULTS_CRD, install_crd
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.specs import smallest_run

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
        process: its process.
        requests: the counter of its requests among its metrics.
        port: of its metrics.
    """

    process: int
    requests: str
    port: int

    def cpu(self) -> float:
        """Seconds of CPU since its start."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, which: str) -> float:
        """VmRSS or VmHWM, in MB."""
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{which}:")) * 1024 / 1e6

    def asked(self) -> float:
        """Requests to the API server since its start."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines: list[str] = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{self.requests}{{"))


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
    run = smallest_run(f"long-{number}")
    run["spec"]["data"] = {"train": [{"source": "gym://data/example.jsonl"}]}
    return run


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
    admin = Kubectl(str(server.kubeconfig), "default", binary("kubectl"))
    crds = str(document("kuberay", "kuberay.yaml"))
    admin.run("apply", "--server-side", "-f", crds)
    wait = ("wait", "--for=condition=Established", "-f", crds)
    eventually(lambda: admin.run(*wait, check=False), "KubeRay's CRDs are established", PATIENCE)
    metrics, health = free_port(), free_port()
    with _RayNode(server), (folder / "kuberay.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary("ray-operator"),
                f"--kubeconfig={server.kubeconfig}",
                f"--metrics-addr=127.0.0.1:{metrics}",
                f"--health-probe-bind-address=127.0.0.1:{health}",
                "--enable-leader-election=false",
                f"--reconcile-concurrency={_WORKERS}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            operator = _Operator(process.pid, "rest_client_requests_total", metrics)
            eventually(lambda: _answers(health), f"KubeRay's operator is ready (log: {log.name})", PATIENCE, every=0.2)
            yield operator
        finally:
            process.terminate()
            process.wait(60)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


_PEERS = {
    "gymtrain": (_gymtrain, _run, "gymtrainingruns", "Training"),
    "KubeRay": (_kuberay, _ray_cluster, "rayclusters", "ready"),
}


def measure(peer: str, count: int, seconds: float, logs: Path) -> list[Result]:
    """Applies `count` at once, waits until all have settled, and looks for `seconds` after that."""
    start, manifest, plural, settled = _PEERS[peer]
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder)) as server:
        server.start_controllers()
        admin = Kubectl(str(server.kubeconfig), _NAMESPACE, binary("kubectl"))
        admin.run("create", "namespace", _NAMESPACE)
        with start(server, logs) as operator:
            before = operator.memory("VmRSS")
            cpu, asked, began = operator.cpu(), operator.asked(), time.monotonic()
            everything = "\n---\n".join(json.dumps(manifest(number)) for number in range(count))
            admin.run("create", "-f", "-", stdin=everything, timeout=_SETTLED_SECONDS)
            states = ("get", plural, "-o", "jsonpath={.items[*].status.state}")

            def all_settled() -> bool:
                return admin.run(*states, timeout=300).split().count(settled) == count

            eventually(all_settled, f"{count} {plural} are {settled}", _SETTLED_SECONDS, every=max(1.0, count / 100))
            took, cpu, asked = time.monotonic() - began, operator.cpu() - cpu, operator.asked() - asked
            made = _made(admin, plural) * count
            at_rest = operator.cpu()
            time.sleep(seconds)
            at_rest = (operator.cpu() - at_rest) / seconds
            resident, peak = operator.memory("VmRSS"), operator.memory("VmHWM")
    return [
        Result(peer, f"objects that it makes for {count}", made, ""),
        Result(peer, "applied to all settled", took, "s"),
        Result(peer, "for each object", took / made * 1000, "ms"),
        Result(peer, "CPU of the operator until then", cpu, "s"),
        Result(peer, "for each object", cpu / made * 1000, "ms"),
        Result(peer, "requests until then, for each object", asked / made, ""),
        Result(peer, "resident, before", before, "MB"),
        Result(peer, "resident, after", resident, "MB"),
        Result(peer, "resident at most", peak, "MB"),
        Result(peer, "growth for each object", (resident - before) / made * 1000, "KB"),
        Result(peer, "share of a core, once all have settled", at_rest * 100, "%"),
    ]


def _made(admin: Kubectl, plural: str) -> int:
    """How many objects have the first of the custom resources as their owner."""
    owner = json.loads(admin.run("get", plural, "-o", "json", "--chunk-size=1", timeout=300))["items"][0]
    found = json.loads(admin.run("get", _KINDS, "-o", "json", timeout=300))["items"]
    uid = owner["metadata"]["uid"]
    return sum(any(one["uid"] == uid for one in item["metadata"].get("ownerReferences") or []) for item in found)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operator_peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60, help="how long to look at all that settled (default: 60)")
    parser.add_argument("--only", nargs="+", choices=list(_PEERS), default=list(_PEERS))
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()), help="folder for the operators' logs")
    options = parser.parse_args()
    results: list[Result] = []
    for peer in options.only:
        found = measure(peer, options.count, options.seconds, options.logs)
        print(as_table(found), flush=True)
        results += found
    print(as_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
