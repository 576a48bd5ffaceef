"""Which vLLM pods may answer: pure decisions over what the pods and the trainer say.

With adapters (LoRA) a weight version's label is the name under which vLLM serves one; else it is the label of the
weights that the pod holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gymtrain_api.weight_version import WeightVersion

DEFAULT = "default"  # vLLM's label for the weights that it started with
UNKNOWN = "unknown"  # stands for a version that nobody could name: the trainer uses no such sample


@dataclass(frozen=True)
class Rules:
    """The run's terms."""

    run: str
    max_staleness: int
    synced: bool  # False: vLLM keeps the weights that it started with
    adapters: bool


@dataclass(frozen=True)
class PodFacts:
    """What one pod said when it was asked last."""

    answers: bool
    trouble: str = ""  # why it doesn't answer
    paused: bool = False
    label: str | None = None  # None: this vLLM can't say it (before 0.26)
    models: tuple[str, ...] = ()
    max_model_len: int | None = None


@dataclass(frozen=True)
class Statement:
    """What the trainer says that the pods hold."""

    version: str | None
    pods: Mapping[str, str]


@dataclass(frozen=True)
class Admission:
    """Whether a pod gets calls; `version` is what it would answer with."""

    version: str | None
    reason: str = ""  # against it; empty: admissible

    @property
    def admissible(self) -> bool:
        return not self.reason


def parse(label: str | None, run: str) -> WeightVersion | None:
    """The version that `label` names; None if it is no version of `run`."""
    version = WeightVersion.parse(label)
    return version if version is not None and version.run == run else None


def newest(labels: Iterable[str | None], run: str) -> WeightVersion | None:
    """The latest version of the run among `labels`."""
    return max((version for label in labels if (version := parse(label, run))), default=None)


def admit(pods: Mapping[str, PodFacts], statement: Statement | None, rules: Rules) -> dict[str, Admission]:
    """Whether each pod may answer, by its URL. `statement` is None while the trainer doesn't answer."""
    held = {url: _held(url, facts, statement, rules) for url, facts in pods.items()}
    if statement is not None:
        current = parse(statement.version, rules.run)
    else:
        answering = (label for url, labels in held.items() if pods[url].answers for label in labels)
        current = newest(answering, rules.run)
    return {url: _admit_pod(pods[url], labels, current, rules) for url, labels in held.items()}


def _held(url: str, facts: PodFacts, statement: Statement | None, rules: Rules) -> tuple[str, ...]:
    """Labels that the pod can answer with."""
    if rules.synced and rules.adapters:
        adapters = tuple(name for name in facts.models if parse(name, rules.run))
        if adapters:
            return adapters
    label = facts.label
    if label is None and statement is not None:
        label = statement.pods.get(url)
    if label is None and not rules.synced:
        label = DEFAULT
    return () if label is None else (label,)


def _admit_pod(facts: PodFacts, labels: tuple[str, ...], current: WeightVersion | None, rules: Rules) -> Admission:
    best = newest(labels, rules.run)
    label = str(best) if best else (labels[0] if labels else None)
    if not facts.answers:
        return Admission(label, facts.trouble or "doesn't answer")
    if facts.paused:
        return Admission(label, "generation is paused")
    if not rules.synced:
        return Admission(label, "" if label == DEFAULT else f"holds {label}, but the run syncs no weights")
    if current is None:
        return Admission(label, "waiting for the trainer's first weights")
    if best is None:
        return Admission(label, f"holds {label or 'unknown weights'}, not of run {rules.run}")
    if best.attempt != current.attempt:
        return Admission(label, f"holds {label}, of another attempt than {current}")
    if best.number < current.number - rules.max_staleness:
        return Admission(label, f"holds {label}, more than {rules.max_staleness} behind {current}")
    return Admission(label)
