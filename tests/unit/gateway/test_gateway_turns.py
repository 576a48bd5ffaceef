"""Conversations of several turns through the gateway."""

import asyncio
from typing import Any

import pytest

from gymtrain_api.ledger import token_digest
from tests.unit.gateway.conftest import Bench, Start
from tests.unit.gateway.fake_vllm import END, FakeVLLM, tokens

CHAT = "/v1/chat/completions"
IDS = {"model": "policy", "logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def ask(bench: Bench, messages: list[dict[str, Any]], **more: Any) -> tuple[dict[str, Any], dict[str, str]]:
    status, document, headers = await bench.post(CHAT, {**IDS, "messages": messages, **more})
    assert status == 200, document
    return document["choices"][0]["message"], headers


def known(message: dict[str, Any]) -> list[int]:
    return list(message["prompt_token_ids"]) + list(message["generation_token_ids"])


async def played(bench: Bench, turns: int) -> list[dict[str, Any]]:
    """A conversation of so many turns, up to the question after them."""
    messages = [user("q0")]
    for turn in range(turns):
        message, _ = await ask(bench, messages)
        messages += [message, user(f"q{turn + 1}")]
    return messages


async def entry(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    digest = token_digest(message["prompt_token_ids"], message["generation_token_ids"])
    status, document, _ = await bench.post("/gymtrain/ledger", {"digests": [digest, "unknown"]})
    assert status == 200
    assert list(document["entries"]) == [digest]
    return dict(document["entries"][digest])


async def test_every_turn_begins_with_the_tokens_of_the_one_before(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    messages = [user("q0")]
    before: list[int] = []
    for turn in range(4):
        message, headers = await ask(bench, messages)
        assert message["prompt_token_ids"][: len(before)] == before
        assert headers["x-gymtrain-history"] == ("exact" if turn else "first")
        assert headers["x-gymtrain-weight-version"] == "run:1:1"
        assert (await entry(bench, message))["history"] == headers["x-gymtrain-history"]
        before = known(message)
        messages += [message, user(f"q{turn + 1}")]
    # what came between the turns is the template's
    assert before[: len(pod.template([user("q0")], ask=True))] == pod.template([user("q0")], ask=True)


async def test_each_answer_is_read_once_however_many_turns_follow(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    await played(bench, 4)
    assert pod.derendered == 4


PLAIN: dict[str, Any] = {"reasoning_parser_kwargs": None}  # of a vLLM without a parser of reasoning, since 0.32


async def test_text_in_which_nothing_is_to_be_read_needs_no_derender(start: Start) -> None:
    pod = FakeVLLM()
    pod.parsers = PLAIN
    pod.answers.extend(["four", "eight"])
    bench = await start(pod)
    first, _ = await ask(bench, [user("2+2")], max_tokens=16)
    second, headers = await ask(bench, [user("2+2"), first, user("4+4")], max_tokens=16)
    assert (first["content"], second["content"]) == ("four", "eight")
    assert first["generation_token_ids"] == [*tokens("four", sampled=True), END]
    assert second["prompt_token_ids"][: len(known(first))] == known(first)
    assert headers["x-gymtrain-history"] == "exact"
    assert pod.derendered == 0


@pytest.mark.parametrize(
    ("parsers", "asked"),
    [
        (None, {}),
        ({"reasoning_parser_kwargs": {"chat_template_kwargs": {}}}, {}),
        (PLAIN, {"tools": [{"type": "function", "function": {"name": "add"}}]}),
        (PLAIN, {"max_tokens": 1000}),
        (PLAIN, {"top_logprobs": 2}),
        (PLAIN, {"return_tokens_as_token_ids": False}),
        (PLAIN | {"sampling": {"skip_special_tokens": False}}, {}),
    ],
    ids=[
        "before 0.32",
        "reasoning",
        "tools",
        "long answers",
        "ids of alternatives",
        "texts of tokens",
        "special tokens",
    ],
)
async def test_where_more_is_to_be_read_vllms_parsers_read_it(
    start: Start, parsers: dict[str, Any] | None, asked: dict[str, Any]
) -> None:
    pod = FakeVLLM()
    pod.parsers = parsers
    bench = await start(pod)
    message, _ = await ask(bench, [user("q")], **({"max_tokens": 16} | asked))
    assert message["content"] == "ok"
    assert pod.derendered == 1


async def test_rollouts_that_begin_alike_share_one_render(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    first = await asyncio.gather(*(ask(bench, [user("q")]) for _ in range(4)))
    later, _ = await ask(bench, [user("q")])
    assert len(pod.rendered) == 1
    assert {tuple(message["prompt_token_ids"]) for message, _ in first} == {tuple(later["prompt_token_ids"])}
    assert pod.generated == 5
    assert len(pod.request_ids) == 5, "of one request, though rendered once"


async def test_other_settings_are_another_render(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    for most in (3, 4, 3):
        message, _ = await ask(bench, [user("q")], max_tokens=most)
        assert len(message["generation_token_ids"]) == min(most, 3)
    assert len(pod.rendered) == 2


async def test_a_render_that_fails_is_asked_for_again(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    pod.render_fails = 1
    answers = await asyncio.gather(*(ask(bench, [user("q")]) for _ in range(4)))
    assert len(answers) == 4
    await ask(bench, [user("q")])
    assert len(pod.rendered) <= 5


async def test_an_answer_does_not_wait_behind_the_prompts_of_others(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod, max_in_flight=64, rollouts=64)
    pod.hang.clear()
    early = asyncio.create_task(ask(bench, [user("early")]))
    await bench.until(lambda: pod.waiting == 1)
    pod.render_slowly.clear()
    others = [asyncio.create_task(ask(bench, [user(f"q{number}")])) for number in range(40)]
    await bench.until(lambda: len(pod.rendered) > 1)
    pod.hang.set()
    await early
    pod.render_slowly.set()
    await asyncio.gather(*others)


async def test_without_ids_in_the_history_the_template_would_break_the_prefix(start: Start) -> None:
    bench = await start(FakeVLLM())
    message, _ = await ask(bench, [user("q")])
    stripped = {"role": "assistant", "content": message["content"]}
    later, _ = await ask(bench, [user("q"), stripped, user("r")])
    assert later["prompt_token_ids"][: len(known(message))] != known(message)


async def test_tool_calls_and_thoughts_keep_their_tokens(start: Start) -> None:
    pod = FakeVLLM()
    pod.answers.extend(["<think>hm</think>{add}", "done"])
    bench = await start(pod)
    message, _ = await ask(bench, [user("q")])
    assert message["tool_calls"][0]["function"]["name"] == "add"
    assert message["reasoning"] == "hm"
    result = {"role": "tool", "content": "4", "tool_call_id": "c"}
    later, headers = await ask(bench, [user("q"), message, result])
    assert headers["x-gymtrain-history"] == "exact"
    assert later["prompt_token_ids"][: len(known(message))] == known(message)


async def test_an_answer_cut_short_gets_its_end_of_turn(start: Start) -> None:
    pod = FakeVLLM()
    pod.cut = True
    bench = await start(pod)
    message, _ = await ask(bench, [user("q")])
    later, headers = await ask(bench, [user("q"), message, user("r")])
    assert headers["x-gymtrain-history"] == "exact"
    since = later["prompt_token_ids"][len(known(message)) :]
    assert since == pod.template([user("q"), user("r")], ask=True)[len(pod.template([user("q")], ask=False)) - 2 :]


@pytest.mark.parametrize("reason", ["rewritten", "edited", "changed"])
async def test_a_rewritten_history_is_a_fork_and_never_silent(start: Start, reason: str) -> None:
    pod = FakeVLLM()
    pod.answers.append("<think>hm</think>4")
    pod.strip_thoughts = reason == "rewritten"
    bench = await start(pod)
    message, _ = await ask(bench, [user("q")])
    if reason == "edited":
        message["content"] = "5"
    question = user("another" if reason == "changed" else "q")
    messages = [question, message, user("r")]
    later, headers = await ask(bench, messages)
    assert (headers["x-gymtrain-history"], headers["x-gymtrain-fork-reason"]) == ("forked", reason)
    assert later["prompt_token_ids"] == pod.template(messages, ask=True)
    assert (await entry(bench, later))["history"] == "forked"
    assert f'gymtrain_gateway_forks_total{{reason="{reason}"}} 1.0' in (await bench.get("/metrics"))[1]
    # the turn after a fork continues it exactly
    end, headers = await ask(bench, [*messages, later, {"role": "tool", "content": "t"}])
    assert headers["x-gymtrain-history"] == "exact"
    assert end["prompt_token_ids"][: len(known(later))] == known(later)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("place", [1, 3, 5])
async def test_an_edit_of_any_earlier_answer_is_a_fork(start: Start, place: int, elsewhere: bool) -> None:
    """Agents that shorten a context replace the text of old answers, and leave their token fields."""
    pod = FakeVLLM()
    bench = await start(pod)
    messages = await played(bench, 3)
    messages[place]["content"] = "[omitted]"
    later, headers = await ask(await start(FakeVLLM()) if elsewhere else bench, messages)
    assert (headers["x-gymtrain-history"], headers["x-gymtrain-fork-reason"]) == ("forked", "edited")
    assert later["prompt_token_ids"] == pod.template(messages, ask=True)


@pytest.mark.parametrize("place", range(6))
async def test_a_message_put_anywhere_before_the_last_answer_is_a_fork(start: Start, place: int) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    messages = await played(bench, 3)
    messages.insert(place, user("by the way"))
    later, headers = await ask(bench, messages)
    assert (headers["x-gymtrain-history"], headers["x-gymtrain-fork-reason"]) == ("forked", "changed")
    assert later["prompt_token_ids"] == pod.template(messages, ask=True)


async def test_an_unchanged_history_is_exact_at_a_gateway_that_never_saw_it(start: Start) -> None:
    messages = await played(await start(FakeVLLM()), 5)
    second = await start(FakeVLLM())
    later, headers = await ask(second, messages)
    assert headers["x-gymtrain-history"] == "exact"
    assert later["prompt_token_ids"][: len(known(messages[-2]))] == known(messages[-2])


async def test_a_turn_costs_the_same_however_many_came_before(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    messages = [user("q")]
    calls = []
    for turn in range(8):
        pod.calls.clear()
        message, headers = await ask(bench, messages)
        assert headers["x-gymtrain-history"] == ("exact" if turn else "first")
        calls.append(len(pod.calls))
        messages += [message, user(f"q{turn + 1}")]
    assert len(set(calls[2:])) == 1, calls


async def test_a_request_may_ask_for_another_choice_of_tools_than_earlier_ones(start: Start) -> None:
    pod = FakeVLLM()
    pod.answers.extend(["{add}", "four"])
    bench = await start(pod)
    message, _ = await ask(bench, [user("q")])
    messages = [user("q"), message, {"role": "tool", "content": "4", "tool_call_id": "c"}]
    message, _ = await ask(bench, messages)
    later = {"tool_choice": "none", "chat_template_kwargs": {"enable_thinking": False}}
    _, headers = await ask(bench, [*messages, message, user("r")], **later)
    assert headers["x-gymtrain-history"] == "exact"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_tokenize_tells_the_prompt_that_was_used(start: Start, path: str) -> None:
    first, second = await start(FakeVLLM()), await start(FakeVLLM())
    message, _ = await ask(first, [user("q")])
    messages = [user("q"), message, user("r")]
    later, _ = await ask(first, messages)
    for bench in (first, second):  # the second gateway never saw the conversation
        _, document, _ = await bench.post(path, {"model": "policy", "messages": messages})
        assert document["tokens"] == later["prompt_token_ids"]
        assert document["count"] == len(document["tokens"])


async def test_tokenize_of_other_messages_is_vllms(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    _, document, _ = await bench.post("/tokenize", {"messages": [user("new")], "add_generation_prompt": False})
    assert document["tokens"] == pod.template([user("new")], ask=False)


async def test_a_prompt_at_the_end_of_the_context_is_refused_in_words_that_model_servers_know(start: Start) -> None:
    bench = await start(FakeVLLM())
    status, document, _ = await bench.post(CHAT, {**IDS, "messages": [user("x" * 5000)]})
    assert status == 400
    assert "maximum context length is 4096" in document["error"]["message"]


@pytest.mark.parametrize("most", [15, 16, 17])
async def test_no_answer_is_longer_than_asked_for(start: Start, most: int) -> None:
    """Not even where vLLM leaves the number out of what it renders, since it is its default."""
    pod = FakeVLLM()
    pod.answers.append("x" * 40)
    message, _ = await ask(await start(pod), [user("q")], max_tokens=most)
    assert len(message["generation_token_ids"]) == most


async def test_with_adapters_the_newest_one_answers_under_its_name(start: Start) -> None:
    from dataclasses import replace

    from tests.unit.gateway.conftest import SETTINGS

    pod = FakeVLLM(label="default")
    pod.adapters = ["run:1:1", "run:1:2"]
    bench = await start(pod, rules=replace(SETTINGS.rules, adapters=True))
    message, headers = await ask(bench, [user("q")])
    assert headers["x-gymtrain-weight-version"] == "run:1:2"
    assert (await entry(bench, message))["versions"] == ["run:1:2"]


async def test_completions_with_ids_are_in_the_ledger(start: Start) -> None:
    bench = await start(FakeVLLM())
    status, document, headers = await bench.post("/v1/completions", {"prompt": [1, 2], "return_token_ids": True})
    assert status == 200
    choice = document["choices"][0]
    found = await entry(bench, {**choice, "generation_token_ids": choice["token_ids"]})
    assert found["versions"] == ["run:1:1"]
    assert headers["x-gymtrain-weight-version"] == "run:1:1"


def test_the_fake_tokenizer_has_two_tokens_for_a_character() -> None:
    assert tokens("a") != tokens("a", sampled=True)
