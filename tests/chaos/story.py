"""What happened to a run: how it was to live, which faults hit it, and every status that it had.

Pure: what is judged here was seen elsewhere.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gymtrain_api.condition_table import reason_row
from gymtrain_api.conditions import Reason
from tests.support.specs import played_run

type Object = dict[str, Any]
type Kind = Literal["good", "sandboxes", "verify", "two-servers", "bad", "refused"]
type Ends = Literal["attempt", "preflight", "status", "record"]
"""What a fault may cost the run that it hits."""

_KINDS: dict[Kind, int] = {"good": 45, "sandboxes": 20, "verify": 10, "two-servers": 15, "bad": 5, "refused": 5}


@dataclass(frozen=True)
class Life:
    """How a run is to live.

    Attributes:
        suspend_after: seconds until its user suspends it; None: never.
        resume_after: seconds until it is to go on after that.
        delete_after: seconds until its user deletes it, whatever it does; None: after its end.
        linger: seconds from its end until it is deleted.
        ttl: seconds after which it is deleted by itself; None: by its user.
        keeps_volume: whether its checkpoints outlive it.
        again: whether it is applied once more under its name, at once when it is deleted.
        manifest: what is applied.
    """

    name: str
    namespace: str
    kind: Kind
    backoff_limit: int
    suspend_after: float | None
    resume_after: float
    delete_after: float | None
    linger: float
    ttl: int | None
    keeps_volume: bool
    again: bool
    manifest: Object = field(default_factory=dict, compare=False)


def drawn_life(seed: int, number: int, namespaces: tuple[str, ...]) -> Life:
    """The life of the run of that number where pods are played; the same for the same seed."""
    draw = random.Random(f"{seed}/run/{number}")
    kind = draw.choices(list(_KINDS), list(_KINDS.values()))[0]
    prefix = {"bad": "bad-", "refused": "refused-"}.get(kind, "")
    life = Life(
        name=f"{prefix}r{number}",
        namespace=draw.choice(namespaces),
        kind=kind,
        backoff_limit=draw.randint(1, 6),
        suspend_after=draw.uniform(1, 25) if draw.random() < 0.2 else None,
        resume_after=draw.uniform(0.5, 10),
        delete_after=draw.uniform(0.5, 40) if draw.random() < 0.2 else None,
        linger=draw.uniform(0, 8),
        ttl=draw.randint(1, 5) if draw.random() < 0.3 else None,
        keeps_volume=draw.random() < 0.2,
        again=draw.random() < 0.15,
    )
    return replace(life, manifest=_manifest(life))


def _manifest(life: Life) -> Object:
    checkpoint = {"size": "1Gi", "retain": "Keep" if life.keeps_volume else "Delete"}
    blocks: Object = {"trainer": {"checkpoint": checkpoint}, "backoffLimit": life.backoff_limit}
    if life.kind == "sandboxes":
        blocks["sandboxes"] = {"backend": "Pod"}
    if life.kind == "verify":
        blocks["rollout"] = {"mode": "Verify"}
    if life.kind == "two-servers":
        blocks["inference"] = {"replicas": 2}
    if life.ttl is not None:
        blocks["ttlSecondsAfterFinished"] = life.ttl
    return played_run(life.name, **blocks)


@dataclass
class Story:
    """One run, from when it was applied.

    Attributes:
        hits: faults that hit it, by what each may cost it.
        by_hand: whether it, or its namespace, was deleted, so that it need not end.
        over: whether it is gone.
        wrong: what must never happen, and did.
    """

    life: Life
    uid: str
    hits: Counter[Ends] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    status: Object = field(default_factory=dict)
    generation: int = 0
    most_attempts: int = 0
    end: str = ""
    by_hand: bool = False
    over: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.life.namespace, self.life.name

    @property
    def state(self) -> str:
        """As `kubectl get` shows it."""
        return str(self.status.get("state", ""))

    def tell(self, run: Object) -> None:
        """Notes the run as the API server has it now, and what of it can't be."""
        status, generation = run.get("status") or {}, int(run["metadata"].get("generation", 1))
        if not status:
            return  # it is new, or somebody took the status away
        attempt = int(status.get("attempt") or 0)
        unknown = self.hits["status"] > 0 and self.hits["record"] > 0  # both places where it stands were taken away
        if not unknown:
            if attempt < self.most_attempts and not (self.hits["status"] and attempt == 0):
                self.wrong.append(f"attempt {self.most_attempts} became {attempt}")
            end = end_of(status)
            mended = bool(self.end) and reason_row(self.end).mendable and generation > self.generation
            if self.end and end != self.end and not mended:
                self.wrong.append(f"{self.end} became {end or status.get('state')}")
        self.most_attempts = max(self.most_attempts, attempt)
        self.end = end_of(status)
        self.status, self.generation = status, generation

    def judgement(self) -> str:
        """What is wrong about its end; empty where all is well."""
        if not self.end:
            return "" if self.by_hand else f"never ended: {summary(self.status)}"
        expected = explained(self.life, self.hits)
        return (
            "" if self.end in expected else f"ended as {self.end}, expected {sorted(expected)}: {summary(self.status)}"
        )


def end_of(status: Object) -> str:
    """The reason of the condition by which a run has ended; empty where it hasn't."""
    for condition in status.get("conditions") or []:
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return str(condition["reason"])
    return ""


def explained(life: Life, hits: Counter[Ends]) -> set[str]:
    """The reasons of the ends that are right, by how it was to live and what hit it."""
    ends = {"bad": {Reason.PREFLIGHT_FAILED}, "refused": {Reason.TRAINER_REFUSED}}.get(
        life.kind, {Reason.TRAINING_COMPLETED}
    )
    if hits["preflight"]:
        ends = ends | {Reason.PREFLIGHT_ERROR}
    if hits["attempt"] > life.backoff_limit:
        ends = ends | {Reason.BACKOFF_LIMIT_EXCEEDED}
    return {str(reason) for reason in ends}


def summary(status: Object) -> str:
    """A status in a line or two."""
    said = [
        f"{c['type']}={c['status']} {c['reason']}: {c.get('message', '')[:300]}"
        for c in status.get("conditions") or []
        if c["type"] in ("PreflightPassed", "Progressing", "Complete", "Failed", "InferenceReady", "GymReady")
    ]
    return f"{status.get('state')}, attempt {status.get('attempt')}; " + "; ".join(said)
