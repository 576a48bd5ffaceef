"""The runs, rows and results of benchmarks.learning."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.learning import figure, results, tasks
from benchmarks.learning.__main__ import wanted
from benchmarks.learning.results import HELD_OUT, TRAIN, Score
from benchmarks.learning.runs import ENVIRONMENTS, Kind, Variant, objects
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.evaluation.evaluations import evaluation_line
from gymtrain_trainer.monitoring.evaluation_scores import EvaluationRow

TRAINED = Variant("counter", Kind.TRAINED, 1)
EVERY = [Variant(name, kind, 1) for name, kind in itertools.product(ENVIRONMENTS, Kind)]


def spec(variant: Variant) -> GymTrainingRunSpec:
    return GymTrainingRunSpec.model_validate(objects(variant)[-1]["spec"])


def rows(environment: str, split: str, seed: int = 1) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tasks.files(environment, seed, 1000, 240, 64)[split].splitlines()]


def question(row: dict[str, Any]) -> tuple[str, int | None]:
    return row["responses_create_params"]["input"][-1]["content"], row.get("initial_count")


@pytest.mark.parametrize("variant", EVERY, ids=lambda variant: variant.name)
def test_a_run_fits_the_types(variant: Variant) -> None:
    assert spec(variant).trainer.config["seed"] == 1


@pytest.mark.parametrize("variant", EVERY, ids=lambda variant: variant.name)
def test_on_gpus_it_is_the_same_run_with_one_for_each_part(variant: Variant) -> None:
    *rows_of_it, run = objects(variant, on_gpus=True)
    found = GymTrainingRunSpec.model_validate(run["spec"])
    assert (found.inference.gpus, found.trainer.gpus) == (1, 1)
    for part in ("inference", "trainer"):
        del run["spec"][part]["gpus"], run["spec"][part]["template"]
    assert [*rows_of_it, run] == objects(variant)


@pytest.mark.parametrize("variant", EVERY, ids=lambda variant: variant.name)
def test_it_has_the_steps_that_are_asked_for(variant: Variant) -> None:
    found = [GymTrainingRunSpec.model_validate(objects(variant, steps=steps)[-1]["spec"]) for steps in (None, 40)]
    assert [one.trainer.config["max_steps"] for one in found] == [20, 40]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_control_differs_from_the_training_in_the_rate_alone(environment: str) -> None:
    trained, control = (spec(Variant(environment, kind, 1)) for kind in (Kind.TRAINED, Kind.RATE_ZERO))
    assert control.trainer.config["learning_rate"] == 0
    control.trainer.config["learning_rate"] = trained.trainer.config["learning_rate"]
    name = Variant(environment, Kind.RATE_ZERO, 1).name
    text = control.model_dump_json().replace(name, Variant(environment, Kind.TRAINED, 1).name)
    assert text == trained.model_dump_json()


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_all_runs_of_an_environment_are_evaluated_on_the_same_tasks(environment: str) -> None:
    asked = set()
    for kind, seed in itertools.product(Kind, (1, 2)):
        *made, _ = objects(Variant(environment, kind, seed))
        asked.add(json.dumps([one["data"] for one in made if one["metadata"]["name"].endswith("-validation")]))
    assert len(asked) == 1


def test_the_untrained_model_is_evaluated_alone() -> None:
    evaluation = spec(Variant("sums", Kind.UNTRAINED, 1)).evaluation
    assert evaluation is not None
    assert evaluation.without_training is not None


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_no_held_out_task_is_trained_on(environment: str) -> None:
    held_out = {question(row) for row in rows(environment, "validation")}
    assert len(rows(environment, "validation")) == 64
    assert held_out.isdisjoint(question(row) for row in rows(environment, "train"))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_another_seed_trains_on_other_rows_or_another_order(environment: str) -> None:
    assert rows(environment, "train") == rows(environment, "train")
    assert rows(environment, "train") != rows(environment, "train", seed=2)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_config_map_holds_the_rows(environment: str) -> None:
    sizes = [len(json.dumps(one)) for one in objects(Variant(environment, Kind.TRAINED, 1))[:-1]]
    assert len(sizes) == 2
    assert max(sizes) < 2**20


def test_a_counter_is_expected_where_the_asked_calls_lead() -> None:
    for row in rows("counter", "train"):
        asked, initial = question(row)
        assert initial is not None
        assert row["expected_count"] == initial + sum(map(int, re.findall(r"add (\d+)", asked)))


def test_digits_that_are_held_out_are_trained_on_in_no_order_and_with_neither_sign() -> None:
    def pairs(split: str) -> set[frozenset[str]]:
        return {frozenset(re.findall(r"\d", question(row)[0])) for row in rows("sums", split)}

    assert pairs("train").isdisjoint(pairs("validation"))


def test_the_worked_answer_has_the_form_that_is_asked_for() -> None:
    (row, *_) = rows("format", "train")
    verifier = row["verifier"]
    (pattern,) = verifier["verify_regex"]
    lines = row["responses_create_params"]["input"][1]["content"].split("\n")
    assert sum(bool(re.search(pattern, line)) for line in lines) == verifier["verify_min_matches"]


def test_what_tells_most_is_run_first() -> None:
    order = wanted(["sums", "counter"], list(Kind), [1, 2])
    assert [variant.name for variant in order] == [
        "sums-trained-1",
        "counter-trained-1",
        "sums-rate-zero-1",
        "counter-rate-zero-1",
        "sums-untrained-1",
        "counter-untrained-1",
        "sums-trained-2",
        "counter-trained-2",
    ]


def scores(*rewards: float, held_out: tuple[float, float] = (0.2, 0.8), variant: Variant = TRAINED) -> list[Score]:
    one = (variant.environment, variant.kind, variant.seed)
    trained = [Score(*one, TRAIN, step, reward, None, None, 32) for step, reward in enumerate(rewards, 1)]
    evaluated = [
        Score(*one, HELD_OUT, step, reward, reward - 0.1, reward + 0.1, 64)
        for step, reward in zip((0, len(rewards)), held_out, strict=True)
    ]
    return evaluated + trained


RISING = (0.1, 0.2, 0.15, 0.2, 0.1, 0.6, 0.7, 0.65, 0.7, 0.6)
FLAT = (0.1, 0.2, 0.15, 0.2, 0.1) * 2


def test_scores_are_found_between_other_lines() -> None:
    # As the trainer itself writes them.
    scored = EvaluationRow(0, "run:1:0", "(all)", 64, 64, 0, 0, "", 0.5, 0.4, 0.6, 0.5, 0.5, 1, 9.0, 0.0, 60.0, 0.0)
    unscored = replace(scored, step=1, reward=None, reward_low=None, reward_high=None)
    log = [
        "INFO starting",
        evaluation_line([scored, replace(scored, environment="agent")]),
        json.dumps({"event": "step", "step": 1, "reward": 0.25, "samples": 32}),
        evaluation_line([unscored]),
        '{"event": "step", "step": 2, "rew',
    ]
    assert results.scores_of(TRAINED, log) == [
        Score("counter", Kind.TRAINED, 1, HELD_OUT, 0, 0.5, 0.4, 0.6, 64),
        Score("counter", Kind.TRAINED, 1, TRAIN, 1, 0.25, None, None, 32),
    ]


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    written = scores(*RISING)
    results.write(tmp_path / "learning.csv", written)
    assert set(results.read(tmp_path / "learning.csv")) == set(written)
    assert results.read(tmp_path / "none.csv") == []


def test_a_rise_is_large_enough_and_outside_the_interval_of_the_start() -> None:
    assert "| both |" in results.table(scores(*RISING))
    assert "| training |" in results.table(scores(*RISING, held_out=(0.2, 0.34)))
    assert "| held-out |" in results.table(scores(*FLAT))
    wide = scores(0.0, 0.9, 0.0, 0.9, 0.0, 0.6, 0.6, 0.6, 0.6, 0.6, held_out=(0.2, 0.2))
    assert "| no |" in results.table(wide)


def test_the_interval_of_the_first_steps_is_students() -> None:
    change = results.training(scores(*RISING))
    assert change is not None
    assert change.start.mean == pytest.approx(0.15)
    assert change.start.high - change.start.mean == pytest.approx(2.776 * 0.05 / 5**0.5)


def test_too_few_steps_have_no_two_ends() -> None:
    assert results.training(scores(*RISING[:9])) is None


def test_a_model_that_is_only_evaluated_has_one_score() -> None:
    one = Score("counter", Kind.UNTRAINED, 1, HELD_OUT, 0, 0.2, 0.1, 0.3, 64)
    assert "| 0 | 0.20 (0.10 to 0.30) |  |  |  |  |" in results.table([one])


def test_a_page_gets_the_results_between_its_marks_and_keeps_the_rest() -> None:
    text = f"# Before\n\n{results.BEGIN}\n\nold\n\n{results.END}\n\nAfter.\n"
    once = results.page(text, scores(*RISING), "learning.svg")
    assert once.startswith("# Before\n\n")
    assert once.endswith("\n\nAfter.\n")
    assert "old" not in once
    assert "| both |" in once
    assert "](learning.svg)" in once
    assert results.page(once, scores(*RISING), "learning.svg") == once


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="begin results"):
        results.page("# Before\n", [], "learning.svg")


def test_the_recorded_page_shows_what_the_csv_says() -> None:
    page = Path(__file__).parents[3] / "docs/recorded/learning.md"
    text = page.read_text()
    assert results.page(text, results.read(page.with_suffix(".csv")), "learning.svg") == text


def test_the_figure_is_the_same_for_the_same_scores(tmp_path: Path) -> None:
    control = Variant("counter", Kind.RATE_ZERO, 1)
    untrained = Score("counter", Kind.UNTRAINED, 1, HELD_OUT, 0, 0.2, 0.1, 0.3, 64)
    all_scores = [*scores(*RISING), *scores(*FLAT, held_out=(0.2, 0.2), variant=control), untrained]
    for name in ("one.svg", "other.svg"):
        figure.draw(all_scores, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "other.svg").read_text()
    ElementTree.fromstring(text)
    for label in ("trained", "learning rate 0", "untrained"):
        assert f">{label}<" in text
