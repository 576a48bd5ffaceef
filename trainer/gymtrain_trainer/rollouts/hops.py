"""Where a rollout's seconds went. Pure.

The trainer measures the try as a whole; the gateway's ledger has the model calls, by a clock that `rollouts/ledger.py`
translates. What lies between them is what nobody else says: agents and resources servers are upstream's.

```
slot ──► earlier tries ──► POST /run
                           │ start: session, sandbox │ call │ tools │ call │ verify │
                           └──────────────────────── seconds ─────────────────────┘
```
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gymtrain_api.ledger import CallTimes
from gymtrain_trainer.rollouts.answer import Answer

_SLACK = 1.0  # seconds: digits of the ledger, and how long its answer was on its way


@dataclass(frozen=True)
class Hops:
    """Where the seconds went.

    Attributes:
        slot_s: waiting for one of `rollout.maxConcurrent`, in all tries.
        earlier_s: in tries that failed, and in pauses after them.
        start_s: of the last try, before its first model call.
        model_s: in which at least one model call was open.
        queue_s: of the model calls, before a vLLM pod took them; summed, so it may be more than `model_s`.
        vllm_s: of the model calls, in vLLM; summed likewise.
        tools_s: between the first call's beginning and the last one's end, with none open.
        verify_s: after the last one.
        calls: each, as JSON; empty where nobody asked for them.

    All from `start_s` to `verify_s` are None where the times of a call aren't known.
    """

    slot_s: float
    earlier_s: float
    start_s: float | None = None
    model_s: float | None = None
    queue_s: float | None = None
    vllm_s: float | None = None
    tools_s: float | None = None
    verify_s: float | None = None
    calls: str = ""

    def numbers(self) -> dict[str, float]:
        """Those that are known, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, float)}


def hops_of(answer: Answer, calls: Sequence[CallTimes | None], *, each: bool = False) -> Hops:
    """Of a rollout.

    Args:
        answer: of its last try.
        calls: by turn, their ends by the clock of `answer.began`; empty where nobody knows them.
        each: whether each call is to be kept.
    """
    slot, earlier = answer.slot_seconds, answer.earlier_seconds
    told = _told(answer, calls) if each else ""
    known = [call for call in calls if call is not None]
    if not known or len(known) < len(answer.turns):
        return Hops(slot, earlier, calls=told)
    spans = sorted(_span(answer, call) for call in known)
    first, last = spans[0][0], max(end for _, end in spans)
    model = _covered(spans)
    return Hops(
        slot,
        earlier,
        start_s=first,
        model_s=model,
        queue_s=sum(call.queued for call in known),
        vllm_s=sum(call.sampled for call in known),
        tools_s=max(0.0, last - first - model),
        verify_s=max(0.0, answer.seconds - last),
        calls=told,
    )


def of_rollout(answer: Answer, times: CallTimes | None) -> CallTimes | None:
    """The times, where the call can be one of this rollout's: another rollout's with the same tokens can't always."""
    if times is None:
        return None
    start, end = _raw_span(answer, times)
    return times if start >= -_SLACK and end <= answer.seconds + _SLACK else None


def _raw_span(answer: Answer, call: CallTimes) -> tuple[float, float]:
    end = call.ended - answer.began
    return end - call.seconds, end


def _span(answer: Answer, call: CallTimes) -> tuple[float, float]:
    """Seconds since the try began: never outside it."""
    start, end = (min(max(0.0, one), answer.seconds) for one in _raw_span(answer, call))
    return start, end


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in at least one of them; sorted by their beginning."""
    covered, until = 0.0, 0.0
    for start, end in spans:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _told(answer: Answer, calls: Sequence[CallTimes | None]) -> str:
    told: list[dict[str, float | None]] = []
    for number, turn in enumerate(answer.turns):
        times = calls[number] if number < len(calls) else None
        tokens: dict[str, float | None] = {"prompt": len(turn.prompt_ids), "tokens": len(turn.output_ids)}
        if times is None:
            told.append({**dict.fromkeys(("at", "seconds", "queue", "vllm")), **tokens})
            continue
        start, end = _span(answer, times)
        hops = {"at": start, "seconds": end - start, "queue": times.queued, "vllm": times.sampled}
        told.append({**{name: round(value, 3) for name, value in hops.items()}, **tokens})
    return json.dumps(told, separators=(",", ":"))
