"""Earlier turns of a conversation."""

from typing import Any

import pytest

from gymtrain_gateway.errors import BadCallError
from gymtrain_gateway.history import chain, past_turns, said, without_ids


def answer(prompt: list[Any], output: list[Any], **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", "prompt_token_ids": prompt, "generation_token_ids": output, **fields}


def test_only_answers_with_token_ids_are_turns() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "example"}, answer([1], [2])]
    found = past_turns(messages)
    assert [(turn.index, turn.known) for turn in found] == [(2, [1, 2])]


def test_ids_that_came_as_strings_are_read() -> None:
    assert past_turns([answer([1], ["2", "3"])])[0].output == [2, 3]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "prompt_token_ids": [1]},
        {"role": "assistant", "generation_token_ids": [1]},
        answer(["a"], [1]),
        answer([1], [-1]),
        answer([1], [1 << 32]),
        answer([1], [None]),
    ],
)
def test_incomplete_ids_are_refused_with_the_place(message: dict[str, Any]) -> None:
    with pytest.raises(BadCallError, match=r"messages\[0\]"):
        past_turns([message])


def test_a_fork_in_the_past_ends_the_chain() -> None:
    forked = past_turns([answer([1], [2]), answer([7, 8], [9]), answer([7, 8, 9, 4], [5])])
    assert [turn.index for turn in chain(forked)] == [1, 2]


def test_vllm_gets_messages_without_ids() -> None:
    assert without_ids([answer([1], [2], generation_log_probs=[0.0])]) == [{"role": "assistant", "content": "x"}]


def test_thoughts_say_the_same_as_a_field_and_in_tags() -> None:
    field = {"content": " 4 ", "reasoning": "two and two"}
    tags = {"content": "<think>two and two</think>4"}
    parts = {"content": [{"type": "text", "text": "<think>two and two</think>4"}]}
    assert said(field) == said(tags) == said(parts)


def test_tool_calls_say_the_same_in_any_json_layout() -> None:
    def call(arguments: object) -> dict[str, Any]:
        return {"content": None, "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": arguments}}]}

    assert said(call('{"a": 1, "b": 2}')) == said(call('{"b":2,"a":1}')) == said(call({"a": 1, "b": 2}))
    assert said(call('{"a": 1}')) != said(call('{"a": 2}'))
    assert said(call("{broken")) == said(call("{ broken"))
