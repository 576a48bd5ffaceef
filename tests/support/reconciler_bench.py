"""A reconciler at work on one run of a fake cluster."""

from typing import Any

import aiohttp

from gymtrain_api import labels
from gymtrain_api.wiring import PREFLIGHT_MARK
from gymtrain_operator import kinds
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.observe import Observer
from gymtrain_operator.reconciler import Reconciler
from tests.support.fake_kube_client import FakeKubeClient
from tests.support.world import DEFAULTS, GYM_VERDICT, INFERENCE_VERDICT, TRAINER_VERDICT, spec

KEY = ("ns", "run")
"""The run that `Bench` has."""


class Bench:
    """A reconciler on a fake cluster, with a clock and answers of pods that the test sets."""

    def __init__(self, session: aiohttp.ClientSession, defaults: Defaults = DEFAULTS) -> None:
        self.cluster = FakeKubeClient()
        self.now = 1_800_000_000.0
        observer = Observer(self.cluster, session, defaults)
        self.reconciler = Reconciler(self.cluster, observer, defaults, lambda: self.now)

    def add_run(self, uid: str = "run-uid", **blocks: Any) -> None:
        meta = {"name": "run", "namespace": "ns", "uid": uid, "generation": 1}
        self.cluster.put(kinds.RUN, {"kind": labels.KIND, "metadata": meta, "spec": spec(**blocks)})

    @property
    def run(self) -> dict[str, Any]:
        return self.cluster.objects[labels.KIND, "ns", "run"]

    async def reconcile(self, seconds: float = 1.0) -> list[str]:
        """The writes of one reconcile."""
        self.now += seconds
        self.cluster.calls.clear()
        await self.reconciler.reconcile(KEY)
        return self.cluster.calls

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [one for (name, _, _), one in self.cluster.objects.items() if name == "Event" and one["type"] == kind]

    def only_pod(self) -> dict[str, Any]:
        (pod,) = [o for (kind, _, _), o in self.cluster.objects.items() if kind == "Pod"]
        return pod

    async def pass_preflight(self) -> None:
        """Preflight is begun and passed, and what comes after it made."""
        await self.reconcile()
        self.only_pod()["status"] = {"phase": "Succeeded"}
        await self.read_verdicts()

    async def read_verdicts(self) -> None:
        """One reconcile that finds good verdicts in the logs of preflight's pod."""
        verdicts = {"gym": GYM_VERDICT, "trainer": TRAINER_VERDICT, "inference": INFERENCE_VERDICT}
        for container, verdict in verdicts.items():
            self.cluster.logs_text[container] = PREFLIGHT_MARK + verdict.model_dump_json()
        self.reconciler.event(KEY)
        await self.reconcile()
