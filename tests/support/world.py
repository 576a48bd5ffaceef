"""A run's world without a cluster: objects in a dict, a clock that only tests move, and the plan carried out on them.

Tests say what happened (`preflight_passes`, `trainer_fails`, ...) and look at what the plan makes of it.
"""

import copy
import json
from typing import Any

from gymtrain_api import labels, names, wiring
from gymtrain_api.conditions import ConditionType
from gymtrain_api.record import read_record
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import Condition, GymTrainingRunStatus
from gymtrain_api.times import to_text
from gymtrain_api.transports import PULL_BACKEND, ServerOffer
from gymtrain_api.weight_version import WeightVersion
from gymtrain_operator import kinds
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.reconcile.observation import Children, Observation, PreflightOutput, Run
from gymtrain_operator.reconcile.plan import Plan, plan
from gymtrain_operator.reconcile.preflight import stored_verdict
from gymtrain_operator.trimming import trimmed
from tests.support.fake_kube_client import merge_patch

START = 1_800_000_000.0
UID = "11111111-2222-3333-4444-555555555555"
DEFAULTS = Defaults(
    gym="gym:1",
    gateway="gateway:1",
    inference="inference:1",
    inference_gpu="inference-gpu:1",
    trainer="trainer:1",
    trainer_gpu="trainer-gpu:1",
    operator_namespace="gymtrain-system",
)
OFFER = ServerOffer(
    frozenset({"/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"}),
    PULL_BACKEND,
)
GYM_VERDICT = wiring.GymPreflight(
    config={
        "policy_model": {"responses_api_models": {"vllm_model": {"entrypoint": "app.py", "api_key": "${oc.env:KEY}"}}},
        "math": {"resources_servers": {"reasoning_gym": {"entrypoint": "app.py", "domain": "math"}}},
        "math_agent": {
            "responses_api_agents": {
                "simple_agent": {
                    "entrypoint": "app.py",
                    "model_server": {"type": "responses_api_models", "name": "policy_model"},
                    "resources_server": {"type": "resources_servers", "name": "math"},
                }
            }
        },
    },
    servers=[
        wiring.GymServerInfo(name="policy_model", kind="model", implementation="vllm_model"),
        wiring.GymServerInfo(name="math", kind="resources", implementation="reasoning_gym"),
        wiring.GymServerInfo(
            name="math_agent", kind="agent", implementation="simple_agent", references=["math", "policy_model"]
        ),
    ],
    data=wiring.DataIndex(train=[wiring.DataFile(file="a", offsets_file="b", rows=100, weight=1)]),
)
TRAINER_VERDICT = wiring.TrainerPreflight(max_steps=10)
INFERENCE_VERDICT = wiring.InferencePreflight()
_CREATED_ONLY = {kind.name for kind in kinds.CREATED_ONLY}

type Object = dict[str, Any]


def spec(**blocks: Any) -> Object:
    """The smallest spec, with whole blocks replaced by wire name."""
    return {
        "model": {"source": "hf://org/model"},
        "gym": {"configPaths": ["resources_servers/reasoning_gym/configs/reasoning_gym.yaml"]},
        "data": {"train": [{"reasoningGym": {"task": "chain_sum", "size": 100}}]},
        **blocks,
    }


class World:
    """One run and what it owns."""

    def __init__(self, name: str = "run", **blocks: Any) -> None:
        self.now = START
        self.spec = spec(**blocks)
        self.defaults = DEFAULTS
        self.name = name
        self.generation = 1
        self.status = GymTrainingRunStatus()
        self.objects: dict[str, dict[str, Object]] = {}
        self.strays: list[Object] = []
        self.seen: dict[str, Any] = {}
        self.uid = UID
        self.annotations: dict[str, str] = {}
        self.deleting = False
        self.queue = ""
        self.last: Plan | None = None
        self._uids = 0

    # ── what the operator does ───────────────────────────────────────────────────────────────────

    def observe(self, **more: Any) -> Observation:
        run = Run(
            self.name,
            "ns",
            self.uid,
            self.generation,
            GymTrainingRunSpec.model_validate(self.spec),
            self.status,
            preflight_only=self.annotations.get(labels.PREFLIGHT_ONLY) == "true",
            record=read_record(self.annotations, self.name),
            deleting=self.deleting,
            queue=self.queue,
        )
        # As they are read: what the operator doesn't keep of an object the plan can't see.
        children = Children(
            {
                kind: {name: copy.deepcopy(trimmed(kinds.BY_NAME[kind], item)) for name, item in items.items()}
                for kind, items in self.objects.items()
            },
            strays=tuple(trimmed(kinds.POD, pod) for pod in self.strays),
        )
        facts = {"verdict": stored_verdict(children, self.name), **self.seen, **more}
        return Observation(run, self.now, children, **facts)

    def plan(self, **more: Any) -> Plan:
        """What the operator would do now; nothing is done."""
        return plan(self.observe(**more), self.defaults)

    def reconcile(self, seconds: float = 0.0, **more: Any) -> Plan:
        """One reconcile `seconds` later: the plan is carried out."""
        self.now += seconds
        done = self.plan(**more)
        for change in done.owners:
            live = self.objects[change.live["kind"]][change.live["metadata"]["name"]]
            assert live["metadata"]["uid"] == change.live["metadata"]["uid"]
            live["metadata"]["ownerReferences"] = list(change.owners)
        for deletion in done.delete:
            live = self.objects[deletion.kind][deletion.name]
            assert live["metadata"]["uid"] == deletion.uid
            del self.objects[deletion.kind][deletion.name]
        for manifest in done.apply:
            self._store(manifest)
        for scaling in done.scale:
            self.objects[scaling.kind][scaling.name]["spec"]["replicas"] = scaling.replicas
        for update in done.updates:
            live = self.objects[update.live["kind"]][update.live["metadata"]["name"]]
            merged = merge_patch(live, update.changes)
            # A subresource takes nothing else, and the rest of the object nothing of it.
            assert set(update.changes) == {"status"} if update.subresource else "status" not in update.changes
            self.objects[update.live["kind"]][update.live["metadata"]["name"]] = merged
        if done.record:
            self.annotations[labels.RECORD] = done.record
        elif done.record is not None:
            del self.annotations[labels.RECORD]
        self.status = done.status
        self.last = done
        return done

    def settle(self, seconds: float = 0.0) -> Plan:
        """Reconciles until nothing is left to do; the second look must find nothing to write."""
        self.reconcile(seconds)
        for _ in range(5):
            done = self.reconcile()
            if not (done.apply or done.delete or done.scale or done.owners or done.updates):
                return done
        raise AssertionError(f"the plan never comes to rest: {done}")

    # ── what the cluster does ────────────────────────────────────────────────────────────────────

    def _store(self, manifest: Object) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        old = self.objects.setdefault(kind, {}).get(name)
        if old and kind in _CREATED_ONLY:
            return  # the API server says 409, and the operator goes on
        live = copy.deepcopy(manifest)
        self._uids += 1
        live["metadata"]["uid"] = old["metadata"]["uid"] if old else f"uid-{self._uids}"
        live["metadata"]["creationTimestamp"] = to_text(self.now)
        live["status"] = (old or {}).get("status", {})
        self.objects[kind][name] = live

    def change(self, **blocks: Any) -> None:
        """The user applies another spec."""
        self.spec |= blocks
        self.generation += 1

    def add_pod(self, name: str, role: labels.Role, status: Object, **more_labels: str) -> None:
        """A pod that a Job or a Deployment made."""
        self._uids += 1
        self.objects.setdefault("Pod", {})[name] = {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "uid": f"uid-{self._uids}",
                "labels": labels.run_labels(self.name, role) | more_labels,
                "creationTimestamp": to_text(self.now),
            },
            "status": status,
        }

    def add_trainer_pod(self) -> str:
        """A rank's pod of the current attempt, which runs; returns its name."""
        attempt = self.status.attempt or 1
        name = f"{names.trainer_job(self.name, attempt)}-0-x"
        self.add_pod(name, labels.Role.TRAINER, {"phase": "Running"}, **{labels.ATTEMPT: str(attempt)})
        return name

    def told_to_stop(self, pod: str, grace: int = 120) -> None:
        """The pod is deleted, and its containers have the signal, and `grace` seconds."""
        self.objects["Pod"][pod]["metadata"] |= {
            "deletionTimestamp": to_text(self.now + grace),
            "deletionGracePeriodSeconds": grace,
        }

    @property
    def preflight_pod(self) -> Object:
        return next(p for n, p in self.objects["Pod"].items() if "-preflight-" in n)

    def preflight_ends(
        self,
        gym: wiring.GymPreflight | None = GYM_VERDICT,
        trainer: wiring.TrainerPreflight | None = TRAINER_VERDICT,
        inference: wiring.InferencePreflight | None = INFERENCE_VERDICT,
    ) -> None:
        """The preflight pod ran and printed these verdicts."""
        good = None not in (gym, trainer, inference)
        self.preflight_pod["status"] = {"phase": "Succeeded" if good else "Failed"}
        self.seen["preflight_output"] = PreflightOutput(gym, trainer, inference)

    def servers_ready(self) -> None:
        """All Deployments have all their pods ready."""
        for deployment in self.objects["Deployment"].values():
            deployment["status"] = {"readyReplicas": deployment["spec"]["replicas"]}
        self.seen["offers"] = (OFFER,)

    @property
    def job(self) -> Object:
        return self.objects["Job"][names.trainer_job(self.name, self.status.attempt or 1)]

    def trainer_reports(self, phase: str, step: int = 0, **more: Any) -> None:
        """The trainer answers on its port."""
        attempt = self.status.attempt or 1
        self.seen["progress"] = wiring.TrainerProgress.model_validate(
            {
                "phase": phase,
                "step": step,
                "max_steps": 10,
                "updated_at": self.now,
                "weight_version": str(WeightVersion(self.name, attempt, step)) if phase == "training" else None,
                **more,
            }
        )

    def trainer_ends(self, code: int, message: str = "", *, container: str = "trainer", tail: str = "") -> None:
        """The trainer's pod ended, and the Job says so."""
        attempt = self.status.attempt or 1
        pod = f"{names.trainer_job(self.name, attempt)}-0-abcde"
        end = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": message}
        statuses = "containerStatuses" if container == "trainer" else "initContainerStatuses"
        status = {
            "phase": "Failed" if code else "Succeeded",
            statuses: [{"name": container, "restartCount": 0, "state": {"terminated": end}}],
        }
        self.add_pod(pod, labels.Role.TRAINER, status, **{labels.ATTEMPT: str(attempt)})
        kind = "Failed" if code else "Complete"
        self.job["status"] = {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": to_text(self.now)}]}
        self.seen.pop("progress", None)
        if tail:
            self.seen["log_tails"] = {(pod, container): tail}

    # ── whole ways ───────────────────────────────────────────────────────────────────────────────

    def to_servers(self) -> "World":
        """Preflight has passed, the servers and the trainer are made."""
        self.reconcile()
        self.preflight_ends()
        self.reconcile(5)
        return self

    def to_training(self, step: int = 1) -> "World":
        """The servers are ready and the trainer trains."""
        self.to_servers()
        self.servers_ready()
        self.trainer_reports("training", step)
        self.reconcile(20)
        return self

    # ── what is there ────────────────────────────────────────────────────────────────────────────

    def condition(self, kind: ConditionType) -> Condition:
        return next(c for c in self.status.conditions if c.type == kind)

    def existing(self, kind: str) -> list[str]:
        return sorted(self.objects.get(kind, {}))


def applied(done: Plan) -> list[str]:
    """What a plan writes, as Kind/name."""
    return [f"{m['kind']}/{m['metadata']['name']}" for m in done.apply]


def deleted(done: Plan) -> list[str]:
    """What a plan deletes, as Kind/name."""
    return [f"{d.kind}/{d.name}" for d in done.delete]


def stored(world: World) -> str:
    """Everything in the world as text, to search in."""
    return json.dumps(world.objects)


__all__ = ["DEFAULTS", "OFFER", "START", "World", "applied", "deleted", "spec", "stored"]
