"""From vLLM's answers to an OpenAI completion."""

from typing import Any

import pytest

from gymtrain_gateway.completion import finish, plain, read, to_derender
from gymtrain_gateway.errors import MissingRouteError, PodFailedError


def generated(tokens: list[int], **choice: Any) -> dict[str, Any]:
    content = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]
    fields = {"token_ids": tokens, "finish_reason": "stop", "stop_reason": None, "logprobs": {"content": content}}
    return {"request_id": "r", "choices": [{**fields, **choice}]}


def derendered(**message: Any) -> dict[str, Any]:
    return {"id": "r", "choices": [{"message": {"role": "assistant", "content": "4", **message}, "finish_reason": ""}]}


def test_the_token_that_ended_the_answer_is_no_text() -> None:
    assert read(generated([7, 8, 0]), {}).text_tokens == [7, 8]
    assert read(generated([7, 8, 9], stop_reason=9), {}).text_tokens == [7, 8]
    assert read(generated([7, 8], finish_reason="length"), {}).text_tokens == [7, 8]
    assert read(generated([7, 8], stop_reason="stop here"), {}).text_tokens == [7, 8]
    assert read(generated([7, 0]), {"include_stop_str_in_output": True}).text_tokens == [7, 0]


def test_answers_of_releases_that_write_tokens_as_text_are_read() -> None:
    content = [{"token": "token_id:7", "logprob": -0.5, "top_logprobs": [{"token": "token_id:7", "logprob": -0.5}]}]
    answer = {"choices": [{"token_ids": [7], "finish_reason": "length", "logprobs": {"content": content}}]}
    found = read(answer, {})
    assert (found.tokens, found.log_probs, found.versions) == ([7], [-0.5], [])
    request = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    choice = finish(derendered(), found, [1], request, with_ids=True)["choices"][0]
    assert choice["logprobs"]["content"][0]["top_logprobs"][0]["token"] == "token_id:7"


def test_an_answer_that_was_cut_off_is_the_pods_failure() -> None:
    with pytest.raises(PodFailedError, match="gave up"):
        read(generated([], finish_reason="abort"), {})
    with pytest.raises(PodFailedError, match="log-probabilities"):
        read(generated([7], logprobs=None), {})


def test_stop_strings_need_a_release_that_says_what_ended_an_answer() -> None:
    answer = generated([7, 8])
    del answer["choices"][0]["stop_reason"]
    with pytest.raises(MissingRouteError, match="stop_reason"):
        read(answer, {"stop": ["x"]})


def test_a_change_of_weights_meanwhile_names_both_versions() -> None:
    spans = [{"version": "run:1:1", "start": 0, "end": 1}, {"version": "run:1:2", "start": 1, "end": 2}]
    assert read(generated([7, 8], weight_versions=spans), {}).versions == ["run:1:1", "run:1:2"]


def test_the_completion_carries_all_that_model_servers_read() -> None:
    request = {"logprobs": True, "return_tokens_as_token_ids": True, "return_token_ids": True}
    answer = finish(derendered(), read(generated([7, 0]), request), [1, 2], request, with_ids=True)
    choice = answer["choices"][0]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["token_id:7", "token_id:0"]
    assert choice["message"]["prompt_token_ids"] == answer["prompt_token_ids"] == [1, 2]
    assert choice["message"]["generation_token_ids"] == choice["token_ids"] == [7, 0]
    assert choice["message"]["generation_log_probs"] == [-0.5, -0.5]
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}


def test_as_many_alternatives_as_were_asked_for() -> None:
    top = [{"token_id": token, "logprob": -0.5} for token in (7, 8)]
    answer = generated([7], logprobs={"content": [{"token_id": 7, "logprob": -0.5, "top_logprobs": top}]})
    for wanted, found in ((None, 0), (0, 0), (1, 1), (2, 2)):
        request = {"logprobs": True, "top_logprobs": wanted, "return_tokens_as_token_ids": True}
        choice = finish(derendered(), read(answer, request), [1], request, with_ids=False)["choices"][0]
        assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == found


def test_who_asks_for_no_ids_gets_none() -> None:
    answer = finish(derendered(), read(generated([7]), {}), [1], {}, with_ids=False)
    assert "prompt_token_ids" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["logprobs"] is None


def test_tool_calls_end_an_answer_as_openai_says_it() -> None:
    calls = [{"id": "1", "function": {"name": "a"}}, {"id": "2", "function": {"name": "b"}}]
    one = {"parallel_tool_calls": False}
    answer = finish(derendered(tool_calls=calls), read(generated([7]), {}), [1], one, with_ids=False)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    named = {"tool_choice": {"type": "function", "function": {"name": "a"}}}
    answer = finish(derendered(tool_calls=calls), read(generated([7]), {}), [1], named, with_ids=False)
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_text_ends_before_a_stop_string() -> None:
    found = read(generated([7, 8], stop_reason="END"), {"stop": ["END"]})
    answer = finish(derendered(content="4 END of"), found, [1], {}, with_ids=False)
    assert answer["choices"][0]["message"]["content"] == "4 "


def test_derender_gets_the_text_tokens_and_no_log_probabilities_that_nobody_asked_for() -> None:
    response = to_derender(read(generated([7, 0]), {}), [1, 2], logprobs=False)
    assert response["choices"][0]["token_ids"] == [7]
    assert response["choices"][0]["logprobs"] is None
    assert response["prompt_token_ids"] == [1, 2]


def test_an_empty_answer_is_a_completion_too() -> None:
    found = read(generated([0]), {})
    answer = finish(plain(found, "policy", 0), found, [1], {"logprobs": True}, with_ids=True)
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["message"]["generation_token_ids"] == [0]
