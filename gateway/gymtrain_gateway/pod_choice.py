"""Which vLLM pods may answer a call, and which of them gets it: pure decisions.

Which may is told by what the pods and the trainer say. With adapters (LoRA) a weight version's label is the name under
which vLLM serves one; else it is the label of the weights that the pod holds.

A pod is paused for a moment at each weight sync. Where no other can take a call, it goes there all the same: vLLM keeps
it, and answers as it goes on. A call that waited here instead would wait until somebody had looked at the pod again.

A conversation stays with one pod, whose prefix cache holds its earlier turns: the pod that wins the rendezvous hash of
the conversation, so that pods that come or go move few conversations. It yields to the least loaded pod when it is full
or clearly busier.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from gymtrain_api.weight_version import WeightVersion

DEFAULT = "default"  # vLLM's label for the weights that it started with
UNKNOWN = "unknown"  # stands for a version that nobody could name: the trainer uses no such sample

_LONG_PAUSE_SECONDS = 2.0  # few syncs take longer; then somebody has to see that the pod doesn't go on
_BUSIER = 2.0  # times the least loaded pod's calls
_SLACK = 8  # calls; below, a difference in load doesn't matter


@dataclass(frozen=True)
class Rules:
    """The run's terms."""

    run: str
    max_staleness: int
    synced: bool  # False: vLLM keeps the weights that it started with
    adapters: bool


@dataclass(frozen=True)
class PodFacts:
    """A pod's last answer.

    Attributes:
        answers: whether it did.
        trouble: why it doesn't answer.
        paused_since: when it was first seen paused, with the weights that it holds still; None while it generates.
        label: of its weights; None: this vLLM can't say it (before 0.27).
        models: names that it serves.
        max_model_len: tokens.
    """

    answers: bool
    trouble: str = ""
    paused_since: float | None = None
    label: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None


@dataclass(frozen=True)
class Statement:
    """What the pods hold, as the trainer reports."""

    version: str | None
    pods: Mapping[str, str]


@dataclass(frozen=True)
class Admission:
    """Whether a pod gets calls.

    Attributes:
        version: that it would answer with.
        reason: against it; empty where it is admissible.
        syncing: the reason is a weight sync, which ends in a moment.
    """

    version: str | None
    reason: str = ""
    syncing: bool = False

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


def admit(pods: Mapping[str, PodFacts], statement: Statement | None, rules: Rules, now: float) -> dict[str, Admission]:
    """Whether each pod may answer, by its URL.

    Args:
        pods: what they said last, by URL.
        statement: None while the trainer doesn't answer.
        rules: of the run.
        now: by the clock of `PodFacts.paused_since`.
    """
    held = {url: _held(url, facts, statement, rules) for url, facts in pods.items()}
    if statement is not None:
        current = parse(statement.version, rules.run)
    else:
        answering = (label for url, labels in held.items() if pods[url].answers for label in labels)
        current = newest(answering, rules.run)
    found = {url: _admit_pod(pods[url], labels, current, rules) for url, labels in held.items()}
    if any(admission.admissible for admission in found.values()):
        return found
    brief = {
        url: replace(facts, paused_since=None)
        for url, facts in pods.items()
        if facts.paused_since is not None and now - facts.paused_since < _LONG_PAUSE_SECONDS
    }
    return found | {url: _admit_pod(facts, held[url], current, rules) for url, facts in brief.items()}


def _held(url: str, facts: PodFacts, statement: Statement | None, rules: Rules) -> tuple[str, ...]:
    """Labels that the pod can answer with."""
    if rules.synced and rules.adapters:
        adapters = tuple(name for name in facts.models if parse(name, rules.run))
        if adapters:
            return adapters
    label = facts.label
    stated = statement.pods.get(url) if statement is not None else None
    if label is None:
        label = stated
    elif parse(label, rules.run):
        # Pods and trainer are asked at different times. What a pod said before the last syncs would hold calls back
        # until the next look at it, half a second later.
        label = str(newest((label, stated), rules.run))
    if label is None and not rules.synced:
        label = DEFAULT
    return () if label is None else (label,)


def _admit_pod(facts: PodFacts, labels: tuple[str, ...], current: WeightVersion | None, rules: Rules) -> Admission:
    best = newest(labels, rules.run)
    label = str(best) if best else (labels[0] if labels else None)
    if not facts.answers:
        return Admission(label, facts.trouble or "doesn't answer")
    if facts.paused_since is not None:
        return Admission(label, "generation is paused", syncing=True)
    if not rules.synced:
        return Admission(label, "" if label == DEFAULT else f"holds {label}, but the run syncs no weights")
    if current is None:
        return Admission(label, "waiting for the trainer's first weights")
    if best is None:
        return Admission(label, f"holds {label or 'unknown weights'}, not of run {rules.run}")
    if best.attempt != current.attempt:
        return Admission(label, f"holds {label}, of another attempt than {current}")
    if best.number < current.number - rules.max_staleness:
        return Admission(label, f"holds {label}, more than {rules.max_staleness} behind {current}", syncing=True)
    return Admission(label)


def conversation(body: Mapping[str, Any]) -> str:
    """Names the conversation: all turns begin with the same messages, up to the first of the user."""
    messages = body.get("messages")
    head: list[Any] = []
    for message in messages if isinstance(messages, list) else [body.get("prompt") or body.get("input")]:
        head.append(message)
        if isinstance(message, dict) and message.get("role") == "user":
            break
    text = json.dumps([head, body.get("tools")], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def choose(key: str, loads: Mapping[str, int], limit: int, avoid: AbstractSet[str] = frozenset()) -> str | None:
    """A pod of `loads` (calls in flight by URL) with less than `limit` calls; None while all are full.

    Pods to avoid are taken only where there is no other.
    """
    allowed = {url: load for url, load in loads.items() if url not in avoid} or loads
    if not allowed:
        return None
    order = sorted(allowed, key=lambda url: _score(key, url), reverse=True)
    sticky = order[0]
    least = min(order, key=lambda url: allowed[url])
    busier = allowed[sticky] > _BUSIER * allowed[least] + _SLACK
    picked = least if busier or allowed[sticky] >= limit else sticky
    return picked if allowed[picked] < limit else None


def _score(key: str, url: str) -> bytes:
    return hashlib.blake2b(f"{key} {url}".encode(), digest_size=8).digest()
