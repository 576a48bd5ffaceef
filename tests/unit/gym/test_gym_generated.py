"""Datasets that reasoning_gym generates."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import PromptMessage, ReasoningGymTask
from gymtrain_gym.datasets import generated
from gymtrain_gym.errors import DatasetError

pytestmark = pytest.mark.gym

EASY = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def task(**settings: Any) -> ReasoningGymTask:
    return ReasoningGymTask(**{"task": "chain_sum", "size": 5, "config": EASY, **settings})


def rows(**settings: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in generated.rows(task(**settings))]


def test_rows_carry_what_the_server_scores_by() -> None:
    row = rows()[0]
    assert set(row) == {"responses_create_params", "question", "answer", "metadata"}
    assert row["metadata"]["source_dataset"] == "chain_sum"


def test_prompt_is_the_question() -> None:
    row = rows()[0]
    assert row["responses_create_params"] == {"input": [{"role": "user", "content": row["question"]}]}


def test_prefix_stands_before_the_question_only_in_the_prompt() -> None:
    row = rows(prompt_prefix="Answer with a number.")[0]
    assert row["responses_create_params"]["input"][0]["content"] == f"Answer with a number.\n\n{row['question']}"
    assert not row["question"].startswith("Answer")


def test_prefix_that_ends_with_a_newline_is_taken_as_it_is() -> None:
    row = rows(prompt_prefix="Q: ")[0]
    assert row["responses_create_params"]["input"][0]["content"] == f"Q: {row['question']}"


def test_settings_of_the_task_are_used() -> None:
    assert all(len(row["metadata"]["expression"]) == len("1 + 2") for row in rows(size=50))


def test_seed_decides_the_rows() -> None:
    assert rows(seed=3) == rows(seed=3)
    assert rows(seed=3) != rows(seed=4)


def test_rows_are_equal_in_another_process() -> None:
    code = (
        "from gymtrain_api.spec import ReasoningGymTask as T; from gymtrain_gym.datasets import generated; import sys;"
        "sys.stdout.buffer.writelines(generated.rows(T(task='chain_sum', size=5, seed=3)))"
    )
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == rows(seed=3, config={})


def test_unknown_task_names_the_nearest() -> None:
    with pytest.raises(DatasetError, match="has no task 'chain_sums': the nearest is 'chain_sum'"):
        rows(task="chain_sums")


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(DatasetError, match="min_digit isn't a setting of chain_sum: the nearest is 'min_digits'"):
        rows(config={"min_digit": 1})


def test_settings_that_contradict_each_other_are_quoted() -> None:
    with pytest.raises(DatasetError, match="max_terms must be >= min_terms"):
        rows(config={"min_terms": 5, "max_terms": 2})


def test_size_in_the_config_points_to_its_place() -> None:
    with pytest.raises(DatasetError, match=r"config\.size is set by reasoningGym\.size"):
        rows(config={"size": 5})


def test_composite_takes_a_list_of_tasks() -> None:
    parts: list[dict[str, Any]] = [{"name": name, "weight": 1.0, "config": {}} for name in ("chain_sum", "gcd")]
    found = {row["metadata"]["source_dataset"] for row in rows(task="composite", size=30, config={"datasets": parts})}
    assert found == {"chain_sum", "gcd"}


def test_scorer_that_fails_on_json_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def scorer(answer: object, entry: object) -> float:
        raise KeyError("solution")

    monkeypatch.setattr("reasoning_gym.get_score_answer_fn", lambda name: scorer)
    with pytest.raises(DatasetError, match="chain_sum can't be scored"):
        generated.check_scoring(task())


def test_messages_come_before_the_question_as_turns_of_their_own() -> None:
    shots = [PromptMessage(role="user", content="1 + 1 ="), PromptMessage(role="assistant", content="2")]
    row = rows(messages=shots)[0]
    *turns, question = row["responses_create_params"]["input"]
    assert turns == [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "2"}]
    assert question == {"role": "user", "content": row["question"]}
