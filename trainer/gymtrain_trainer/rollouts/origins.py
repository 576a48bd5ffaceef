"""From ledger entries to the origin of each turn: which weights sampled it. Pure.

A digest names a call by its tokens, so two calls with the same prompt and the same answer share one. A short answer to
a prompt that is drawn in every epoch does that: the ledgers of several gateway pods may hold old entries of it beside
the new one. What settles it is that no call of a group can be older than the group: versions from before the floor
(the trainer's version at the group's start, less maxStaleness, which is what the gateway lets through) belong to other
calls. Of the rest the oldest counts. Where evaluations have a temperature of their own, entries of another temperature
than the rollout's belong to other calls, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymtrain_api.ledger import CallTimes, LedgerEntry
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.rollouts.answer import Answer, Turn
from gymtrain_trainer.rollouts.hops import Hops, hops_of, of_rollout
from gymtrain_trainer.rollouts.ledger import Entries
from gymtrain_trainer.weights import SyncNumbers

ABORTED = "abort"  # vLLM's finish_reason of a request that was cut off
TRUNCATED = "length"


@dataclass(frozen=True)
class Origin:
    """Where one turn's tokens came from."""

    versions: tuple[int, ...]  # model versions that may have sampled it, oldest first
    continues: bool  # its prompt begins with the last turn's tokens, bit by bit
    forked: bool  # the chat template rewrote the history
    finish_reason: str | None = None
    aborted: bool = False  # vLLM cut it off
    constrained: bool = False  # a grammar held the answer: see LedgerEntry
    replaced: tuple[str, ...] = ()  # sampling settings that the call asked for, and the gateway replaced by the run's
    times: CallTimes | None = None  # None where they aren't known


@dataclass(frozen=True)
class Rollout:
    """A finished rollout and what is known of its weights."""

    answer: Answer
    versions: tuple[int, ...]  # all that may have sampled a turn of it, oldest first
    origins: tuple[Origin, ...] = ()  # one a turn; empty if the run has no gateway

    @property
    def version(self) -> int:
        """The oldest."""
        return self.versions[0]

    @property
    def truncated(self) -> bool:
        """A turn hit the token limit."""
        return self.answer.truncated or any(origin.finish_reason == TRUNCATED for origin in self.origins)

    @property
    def aborted(self) -> bool:
        """vLLM cut a turn off: what followed from it wasn't the policy's doing."""
        return any(origin.aborted for origin in self.origins)

    def hops(self, *, each: bool) -> Hops:
        """Where its seconds went; `each`: with each model call."""
        return hops_of(self.answer, [origin.times for origin in self.origins], each=each)

    @property
    def forks(self) -> int:
        """Turns whose history the chat template rewrote."""
        return sum(origin.forked for origin in self.origins)


def digests_of(answers: Sequence[Answer]) -> dict[str, Turn]:
    """Every turn of a group by its digest."""
    return {turn.digest: turn for answer in answers for turn in answer.turns}


def rollouts_of(
    answers: Sequence[Answer], entries: Entries, numbering: SyncNumbers, floor: int, temperature: float | None = None
) -> list[Rollout]:
    """The answers with the origin of each turn.

    Args:
        answers: of the rollouts.
        entries: of their turns.
        numbering: of the weights' versions.
        floor: the oldest version that can have sampled them.
        temperature: that they are to be sampled at; None where it isn't looked at.

    Raises:
        GroupDroppedError: a turn has no entry, was sampled by other weights than this attempt's or at another
            temperature, or is older than `floor`.
    """
    rollouts = []
    for answer in answers:
        origins = tuple(
            replace(
                _origin(turn, entries, numbering, floor, temperature),
                times=_times(answer, entries.get(turn.digest, ())),
            )
            for turn in answer.turns
        )
        versions = {version for origin in origins for version in origin.versions}
        rollouts.append(Rollout(answer, tuple(sorted(versions)), origins))
    return rollouts


def _origin(
    turn: Turn, entries: Entries, numbering: SyncNumbers, floor: int, temperature: float | None = None
) -> Origin:
    every = entries.get(turn.digest, ())
    if not every:
        raise GroupDroppedError(DropReason.NO_LEDGER_ENTRY, "a model call of the group is in no gateway's ledger")
    found = [entry for entry in every if _sampled_at(entry, temperature)]
    if not found:
        raise GroupDroppedError(
            DropReason.OTHER_TEMPERATURE,
            f"a model call was sampled at temperature {every[-1].temperatures[-1]:g}, not at {temperature:g}: an agent "
            "or model server sets one of its own",
        )
    ours = [(entry, numbers) for entry in found if (numbers := _numbers(entry, numbering)) is not None]
    if not ours:
        labels = sorted({label for entry in found for label in entry.versions})
        raise GroupDroppedError(
            DropReason.FOREIGN_WEIGHTS,
            f"a model call of the group was sampled by weights {', '.join(labels)}, not by "
            f"{numbering.run}:{numbering.attempt}:*",
        )
    recent = [(entry, [n for n in numbers if n >= floor]) for entry, numbers in ours if max(numbers) >= floor]
    if not recent:
        raise GroupDroppedError(
            DropReason.STALE, f"a model call of the group was sampled by {ours[-1][0].versions[0]}: too old"
        )
    return Origin(
        versions=tuple(sorted({number for _, numbers in recent for number in numbers})),
        continues=all(entry.history == "exact" for entry, _ in recent),
        forked=any(entry.history == "forked" for entry, _ in recent),
        finish_reason=next((entry.finish_reason for entry, _ in recent if entry.finish_reason), None),
        aborted=all(entry.finish_reason == ABORTED for entry, _ in recent),
        constrained=any(entry.constrained for entry, _ in recent),
        replaced=tuple(dict.fromkeys(name for entry, _ in recent for name in entry.replaced)),
    )


def _times(answer: Answer, entries: Sequence[LedgerEntry]) -> CallTimes | None:
    """Of the last of the calls with these tokens that can be the rollout's."""
    possible = [times for entry in entries if (times := of_rollout(answer, entry.times)) is not None]
    return max(possible, key=lambda times: times.ended, default=None)


def _numbers(entry: LedgerEntry, numbering: SyncNumbers) -> list[int] | None:
    """Model versions of an entry; None if one of them isn't this attempt's."""
    numbers = [numbering.model_version(label) for label in entry.versions]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None


def _sampled_at(entry: LedgerEntry, temperature: float | None) -> bool:
    return temperature is None or not entry.temperatures or temperature in entry.temperatures
