"""The gateway's ledger: which weights sampled each model call, under a digest of the call's tokens.

The servers between vLLM and the trainer keep token ids and drop everything else, so no answer says which weights
sampled it. The gateway records that under a digest of the ids, and the trainer asks for it:

    gateway                                            trainer
    each call: ledger[digest(prompt, output)] = Entry
    POST /gymtrain/ledger {"digests": [...]}   <─────  each gateway pod, once a group
    {"entries": {digest: Entry}}               ─────►  version of every turn; none: the group is dropped

For the same reason it says where a call's seconds went. Clocks of two nodes differ, so a call's end is told by the
clock that `age_seconds` of the answer is read from: who asks knows how long ago it was.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

LEDGER_PATH = "/gymtrain/ledger"
MAX_DIGESTS = 4096  # of one request
_BYTES = 16


def token_digest(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> str:
    """Identifies a model call by its tokens: 32 hexadecimal digits."""
    text = hashlib.blake2b(len(prompt_ids).to_bytes(8, "little"), digest_size=_BYTES)
    text.update(array("I", prompt_ids).tobytes())
    text.update(array("I", output_ids).tobytes())
    return text.hexdigest()


class CallTimes(BaseModel):
    """Where the seconds of a model call went, to three digits."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    seconds: float  # from the call's arrival at the gateway to its answer
    queued: float  # of these, before the pod that answered took it: no pod had room, or another one failed
    sampled: float  # in that pod's generation: vLLM's own queue, prefill and decoding
    ended: float = 0.0
    """When it was answered: seconds since the pod's ledger began. Set by the ledger; see `LedgerEntry.by_clock`."""


class LedgerEntry(BaseModel):
    """One model call."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    versions: list[str] = Field(min_length=1)  # that sampled it, oldest first: run:attempt:step or "unknown"
    history: Literal["first", "exact", "forked"] = "first"
    """first: no earlier turn of the model; exact: the prompt begins with exactly the last turn's tokens; forked: it
    doesn't, because the chat template rewrote the history."""
    finish_reason: str | None = None
    constrained: bool = False
    """Whether a grammar restricted the answer (tool_choice, a JSON schema). Its log-probabilities then count only the
    allowed tokens."""
    replaced: tuple[str, ...] = ()
    """Sampling settings that the call requested, and that the run's settings replaced."""
    temperatures: tuple[float, ...] = ()
    """At which it was sampled, several where equal calls were; empty where the run has one temperature for all."""
    times: CallTimes | None = None
    """Of the last one, where equal calls were."""

    def by_clock(self, began: float) -> Self:
        """The entry with `times.ended` by another clock, on which the pod's ledger began at `began`."""
        if self.times is None:
            return self
        times = self.times.model_copy(update={"ended": began + self.times.ended})
        return self.model_copy(update={"times": times})


class LedgerQuestion(BaseModel):
    """Body of POST /gymtrain/ledger."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    digests: list[str] = Field(max_length=MAX_DIGESTS)


class LedgerAnswer(BaseModel):
    """The answer: the entries of this gateway pod. Several pods' ledgers may have the same call."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    entries: dict[str, LedgerEntry] = Field(default_factory=dict)
    forgotten: int = 0  # calls that this pod dropped for lack of room before they were asked for
    age_seconds: float | None = None  # since this pod's ledger began; it has no earlier calls
