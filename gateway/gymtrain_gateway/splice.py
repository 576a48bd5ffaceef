"""Exact token prefixes: the tokens of earlier turns as they were, in place of the template's tokens for them. Pure.

    template, whole conversation    [ history, written again         ][ since then ]      `full`
    template, up to last answer     [ history, written again         ]                    `head`
    really used                     [ prompt + answer of last turn ][eot]                 `known`
    the prompt                      [ prompt + answer of last turn ][eot][ since then ]

The template's history may differ in tokens from what was used (text that is tokenized again need not give the tokens
back, tool calls are written in another layout), but it has to say the same. Where it doesn't, the conversation forks.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from gymtrain_gateway.history import PastTurn, compact, pieces


@dataclass(frozen=True)
class Fork:
    """Why the template's history is not a continuation; `reason` is a label of the metric."""

    reason: str
    message: str


def tail_of(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """What the template writes after an answer: where two conversations that differ in it agree again."""
    size = 0
    while size < min(len(one), len(other)) and one[-1 - size] == other[-1 - size]:
        size += 1
    return list(one[len(one) - size :])


def opening_of(asked: Sequence[int], closed: Sequence[int]) -> list[int]:
    """What the template writes before an answer: how a conversation that asks for one differs from one that doesn't.

    Often more than what stands before the answer in a history, such as an empty block of reasoning.
    """
    return list(asked[len(closed) :]) if list(asked[: len(closed)]) == list(closed) else []


def missing_tail(known: Sequence[int], tail: Sequence[int]) -> list[int]:
    """The part of the template's end of turn that the model did not sample: all of it where it was cut short."""
    for size in range(len(tail), 0, -1):
        if list(known[-size:]) == list(tail[:size]):
            return list(tail[size:])
    return list(tail)


def continues(full: Sequence[int], known: Sequence[int]) -> bool:
    """Whether the template's own tokens are exact already."""
    return list(full[: len(known)]) == list(known)


def splice(
    full: list[int], head: list[int], linked: Sequence[PastTurn], tail: list[int], opening: Sequence[int] = ()
) -> list[int] | Fork:
    """The prompt.

    Args:
        full: the template's tokens of the whole conversation, with the generation prompt.
        head: its tokens up to the last answer of the model, without it.
        linked: the answers of the model that follow each other exactly, the last one last.
        tail: what the template writes after an answer.
        opening: what it writes before one that it asks for.
    """
    if not tail or head[-len(tail) :] != tail:
        return Fork("no_end_of_turn", "the end of the model's last turn can't be found in the template's tokens")
    if full[: len(head)] != head:
        return Fork("rewritten", "because of what follows, the template writes the model's last turn differently")
    if not _aligned(head, linked, tail, list(opening)):
        return Fork("changed", "the conversation now differs from what the model was given before its last turn")
    known = linked[-1].known
    return known + missing_tail(known, tail) + full[len(head) :]


def _aligned(head: list[int], linked: Sequence[PastTurn], tail: list[int], opening: list[int]) -> bool:
    """Whether the template's tokens are what the model did not write and its answers, in order, and nothing else.

    The opening of an answer is nobody's words, and a history may have another. The last token of each part is left
    out: it may merge with what the template writes next.
    """
    position = before = 0
    missing: list[int] = []
    ends = _places(head, tail)
    for turn in linked:
        given, known = turn.prompt[before:], turn.known
        missing = missing_tail(known, tail)
        if head[position : position + len(known) - before] == known[before:]:
            position += len(known) - before
        else:
            if opening and given[-len(opening) :] == opening:
                given = given[: -len(opening)]
            part = given[:-1] or given
            if head[position : position + len(part)] != part:
                return False
            # The answer may have other tokens here: the tail tells where it ends. A tail without a special token may
            # stand in the answer, too.
            sampled = len(tail) - len(missing)
            inside = len(_places(turn.output[: len(turn.output) - sampled], tail))
            end = bisect.bisect_left(ends, position + len(part)) + inside
            if end >= len(ends):
                return False
            position = ends[end] + sampled
        before = len(known)
    return position + len(missing) == len(head)


def _places(tokens: list[int], part: list[int]) -> list[int]:
    """Where `part` begins in `tokens`."""
    starts = (place for place, token in enumerate(tokens) if token == part[0])
    return [place for place in starts if tokens[place : place + len(part)] == part]


def dropped(text: str, linked: Sequence[PastTurn]) -> Fork | None:
    """A fork if `text`, the template's history, leaves out something that the model said."""
    history = compact(text)
    position = 0
    for turn in linked:
        names = [str((call.get("function") or {}).get("name")) for call in turn.message.get("tool_calls") or []]
        for piece in pieces(turn.message) + [compact(name) for name in names]:
            found = history.find(piece, position)
            if found < 0:
                return Fork("dropped", f"the template leaves out what the model said in message {turn.index}")
            position = found + len(piece)
    return None
