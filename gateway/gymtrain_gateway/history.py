"""What a conversation tells of its earlier turns: pure.

Gym's model servers send the token ids of each turn back on its assistant message (`prompt_token_ids`,
`generation_token_ids`); 0.4.0 writes some of them as strings.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymtrain_gateway.errors import BadCallError

ID_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
_IDS = 1 << 32  # token ids are below: digests take them as 32 bits


@dataclass(frozen=True)
class PastTurn:
    """An answer of the model in the history."""

    index: int  # of its message
    message: Mapping[str, Any]
    prompt: list[int]
    output: list[int]

    @property
    def known(self) -> list[int]:
        """All tokens up to the end of the answer."""
        return self.prompt + self.output


def past_turns(messages: Sequence[Mapping[str, Any]]) -> list[PastTurn]:
    """The answers that carry their tokens, oldest first.

    Raises:
        BadCallError: token ids are incomplete or no numbers.
    """
    return [
        PastTurn(index, message, _ids(message, "prompt_token_ids", index), _ids(message, "generation_token_ids", index))
        for index, message in enumerate(messages)
        if _is_past_turn(message)
    ]


def has_past_turns(messages: object) -> bool:
    """Whether a conversation has answers that carry their tokens."""
    return isinstance(messages, list) and any(
        isinstance(message, Mapping) and _is_past_turn(message) for message in messages
    )


def _is_past_turn(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and bool(message.get("prompt_token_ids") or message.get(ID_FIELDS[1]))


def chain(answers: Sequence[PastTurn]) -> list[PastTurn]:
    """The last answers of which each continues the one before, token by token. An older fork ends it."""
    linked = list(answers[-1:])
    for turn in reversed(answers[:-1]):
        known = turn.known
        if linked[0].prompt[: len(known)] != known:
            break
        linked.insert(0, turn)
    return linked


def without_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as vLLM needs them."""
    return [{name: value for name, value in message.items() if name not in ID_FIELDS} for message in messages]


@dataclass(frozen=True)
class Said:
    """What an assistant message says, in a form in which an answer and its echo in the history are equal.

    Parsers and templates move white space, and Gym carries reasoning as a field or in think tags.
    """

    text: str
    calls: tuple[tuple[str, str], ...]


def said(message: Mapping[str, Any]) -> Said:
    """What `message` says."""
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        calls.append((str(function.get("name")), _canonical(function.get("arguments"))))
    return Said("".join(pieces(message)), tuple(calls))


def pieces(message: Mapping[str, Any]) -> list[str]:
    """Reasoning and content of an assistant message, without white space and think tags; the empty ones left out."""
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content)
    parts = [compact(part) for text in (reasoning, content) for part in _split_thoughts(str(text))]
    return [part for part in parts if part]


def compact(text: str) -> str:
    """`text` without white space."""
    return "".join(text.split())


def _split_thoughts(text: str) -> list[str]:
    return text.replace("</think>", "<think>").split("<think>")


def _canonical(arguments: Any) -> str:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return compact(str(arguments))
    return json.dumps(value, sort_keys=True)


def _ids(message: Mapping[str, Any], field: str, index: int) -> list[int]:
    value = message.get(field)
    if not isinstance(value, list) or (field == "prompt_token_ids" and not value):
        raise BadCallError(f"messages[{index}].{field}: expected a list of token ids; send both lists or neither")
    try:
        ids = [int(token) for token in value]
    except (TypeError, ValueError):
        raise BadCallError(f"messages[{index}].{field}: expected token ids, got something else") from None
    if any(not 0 <= token < _IDS for token in ids):
        raise BadCallError(f"messages[{index}].{field}: a token id is out of range")
    return ids
