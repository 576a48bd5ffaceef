"""Reading what an agent answers."""

from typing import Any

import pytest

from gymtrain_trainer.errors import AnswerError
from gymtrain_trainer.rollouts.answer import parse_answer, prompt_text


def message(text: str, **ids: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]} | ids


def ids(prompt: list[int], output: list[int]) -> dict[str, Any]:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": output,
        "generation_log_probs": [-0.5] * len(output),
    }


def answer(*items: dict[str, Any], reward: Any = 1.0, incomplete: str | None = None) -> dict[str, Any]:
    details = {"reason": incomplete} if incomplete else None
    return {"reward": reward, "response": {"output": list(items), "incomplete_details": details}}


def test_one_turn_has_the_ids_of_its_message() -> None:
    parsed = parse_answer(answer(message("8", **ids([1, 2], [3]))))
    assert (list(parsed.turns[0].prompt_ids), list(parsed.turns[0].output_ids), parsed.reward) == ([1, 2], [3], 1.0)


def test_items_without_ids_belong_to_the_turn_that_has_them() -> None:
    call = {"type": "function_call", "name": "search", "arguments": "{}"} | ids([1], [2, 3])
    result = {"type": "function_call_output", "call_id": "c", "output": "found"}
    parsed = parse_answer(answer(message("Let me look."), call, result, message("done", **ids([1, 2, 3, 4], [5]))))
    assert [list(turn.output_ids) for turn in parsed.turns] == [[2, 3], [5]]
    assert parsed.text == "Let me look.\n[search({})]\n[→ found]\ndone"


def test_an_answer_without_ids_is_a_failure_that_says_what_to_set() -> None:
    with pytest.raises(AnswerError, match="return_token_id_information"):
        parse_answer(answer(message("8")))


def test_a_prompt_beyond_the_context_is_named_as_the_reason() -> None:
    with pytest.raises(AnswerError, match="max-model-len"):
        parse_answer(answer(message(""), incomplete="max_output_tokens"))


def test_log_probs_that_do_not_match_the_ids_are_a_failure() -> None:
    broken = ids([1], [2, 3]) | {"generation_log_probs": [-0.5]}
    with pytest.raises(AnswerError, match="2 token ids, but 1 log-probabilities"):
        parse_answer(answer(message("8", **broken)))


@pytest.mark.parametrize("reward", [None, "1", float("nan"), [1.0]])
def test_a_missing_reward_is_a_failure_and_never_zero(reward: Any) -> None:
    with pytest.raises(AnswerError, match="reward"):
        parse_answer(answer(message("8", **ids([1], [2])), reward=reward))


@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan")])
def test_a_log_prob_that_is_no_number_is_a_failure(value: float) -> None:
    broken = ids([1], [2, 3]) | {"generation_log_probs": [-0.5, value]}
    with pytest.raises(AnswerError, match="finite"):
        parse_answer(answer(message("8", **broken)))


@pytest.mark.parametrize("body", [None, [], "text", {}, {"reward": 1.0}, {"reward": 1.0, "response": None}])
def test_other_shapes_are_failures_too(body: Any) -> None:
    with pytest.raises(AnswerError):
        parse_answer(body)


def test_a_truncated_generation_still_counts() -> None:
    assert parse_answer(answer(message("8", **ids([1], [2])), incomplete="max_output_tokens")).truncated


def test_the_prompt_is_readable() -> None:
    row = {"responses_create_params": {"input": [{"role": "user", "content": "1 + 1 ="}]}}
    assert prompt_text(row) == "user: 1 + 1 ="
    assert prompt_text({"responses_create_params": {"input": "plain"}}) == "plain"
    assert prompt_text({}) == ""


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ({"mask_sample": True, "failure_reason": "the judge was away"}, "the judge was away"),
        ({"mask_sample": True}, "no reason given"),
        ({"_ng_failure_class": "judge_failed", "_ng_failure_judge_error": "HTTP 502"}, "HTTP 502"),
        ({"_ng_failure_class": "judge_failed"}, "judge_failed"),
    ],
)
def test_an_environment_that_failed_is_no_reward(says: dict[str, Any], told: str) -> None:
    body = answer(message("8", **ids([1], [2]))) | {"reward": 0.0} | says
    with pytest.raises(AnswerError, match=f"isn't a measurement: {told}"):
        parse_answer(body)


def test_an_empty_failure_class_is_none() -> None:
    body = answer(message("8", **ids([1], [2]))) | {"reward": 0.5, "_ng_failure_class": None}
    assert parse_answer(body).reward == 0.5


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_generation_that_was_cut_off_is_a_failure(status: str) -> None:
    body = answer(message("8", **ids([1], [2])))
    body["response"]["status"] = status
    with pytest.raises(AnswerError, match=status):
        parse_answer(body)


def test_a_call_that_sampled_nothing_is_no_turn() -> None:
    parsed = parse_answer(answer(message("", **ids([1], [])), message("8", **ids([1], [2]))))
    assert [list(turn.output_ids) for turn in parsed.turns] == [[2]]


@pytest.mark.parametrize("tokens", [[-1], ["7"], [7.5], [None], [1 << 33]])
def test_what_is_no_token_id_is_refused(tokens: list[Any]) -> None:
    with pytest.raises(AnswerError, match="something else than token ids"):
        parse_answer(answer(message("8", **ids([1], tokens))))
