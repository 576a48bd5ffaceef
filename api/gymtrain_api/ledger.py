"""The gateway's ledger: where each model call's tokens came from, by a digest of the tokens themselves.

Nothing that a Gym server passes on says which weights sampled an answer: the servers between vLLM and the trainer keep
token ids and drop the rest. So the gateway notes it under a digest of those ids, and the trainer asks for it:

    gateway                                            trainer
    each call: ledger[digest(prompt, output)] = Entry
    POST /gymtrain/ledger {"digests": [...]}   <─────  each gateway pod, once a group
    {"entries": {digest: Entry}}               ─────►  version of every turn; none: the group is dropped
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

LEDGER_PATH = "/gymtrain/ledger"
MAX_DIGESTS = 4096  # of one request
_BYTES = 16


def token_digest(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> str:
    """Names a model call by its tokens: 32 hexadecimal digits."""
    text = hashlib.blake2b(len(prompt_ids).to_bytes(8, "little"), digest_size=_BYTES)
    text.update(array("I", prompt_ids).tobytes())
    text.update(array("I", output_ids).tobytes())
    return text.hexdigest()


class LedgerEntry(BaseModel):
    """One model call."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    versions: list[str] = Field(min_length=1)  # that sampled it, oldest first: run:attempt:step or "unknown"
    history: Literal["first", "exact", "forked"] = "first"
    """first: no earlier turn of the model in it; exact: the prompt begins with the last turn's tokens, bit by bit;
    forked: the chat template rewrote the history, so the prompt does not."""
    finish_reason: str | None = None
    constrained: bool = False
    """A grammar held the answer (tool_choice, a JSON schema): its log-probabilities are those among allowed tokens."""
    replaced: tuple[str, ...] = ()
    """Sampling settings that the call asked for, and in whose place the run's were used."""


class LedgerQuestion(BaseModel):
    """Body of POST /gymtrain/ledger."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    digests: list[str] = Field(max_length=MAX_DIGESTS)


class LedgerAnswer(BaseModel):
    """Its answer: entries that this gateway pod has. The same call may stand in several pods' ledgers."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    entries: dict[str, LedgerEntry] = Field(default_factory=dict)
    forgotten: int = 0  # calls that this pod had no more room for before they were asked for
    age_seconds: float | None = None  # since this pod's ledger began; it knows of no call before
