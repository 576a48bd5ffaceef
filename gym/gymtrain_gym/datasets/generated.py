"""Datasets that reasoning_gym generates.

Rows have the shape of NeMo Gym's own script (resources_servers/reasoning_gym/scripts/create_dataset.py): the request,
and the entry (question, answer, metadata) by which the reasoning_gym server scores. Row N depends on the seed
and N alone: in nearly all tasks on their sum, so that row 1 of seed 1 is row 0 of seed 2.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from gymtrain_api.spec import Data, ReasoningGymTask
from gymtrain_gym.config.findings import Findings, nearest
from gymtrain_gym.errors import DatasetError

SCORED_ROWS = 8
JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def rows(task: ReasoningGymTask, limit: int | None = None) -> Iterator[bytes]:
    """The rows as JSON lines, the first `limit` where given.

    Raises:
        DatasetError: no such task, wrong settings, or rows that JSON can't carry.
    """
    entries = _dataset(task)
    for position in range(task.size if limit is None else min(limit, task.size)):
        try:
            entry = entries[position]
        except Exception as error:
            raise DatasetError(f"{task.task} can't make row {position}: {type(error).__name__}: {error}") from error
        try:
            yield orjson.dumps(_row(entry, task), option=JSON_OPTIONS) + b"\n"
        except orjson.JSONEncodeError as error:
            raise DatasetError(f"rows of {task.task} can't be written as JSON: {error}") from error


def warn_of_shared_rows(data: Data, findings: Findings) -> None:
    """Warns of rows that are both trained on and evaluated on, because their seeds are too close to each other.

    Args:
        data: spec.data.
        findings: for the warnings.
    """
    for number, evaluated in enumerate(data.validation or ()):
        for place, trained in enumerate(data.train):
            made, other = evaluated.reasoning_gym, trained.reasoning_gym
            if made is None or other is None or (made.task, made.config) != (other.task, other.config):
                continue
            free = other.seed + other.size
            shared = min(free, made.seed + made.size) - max(other.seed, made.seed)
            if shared > 0:
                findings.warn(
                    f"spec.data.validation[{number}].reasoningGym.seed",
                    f"{shared} of {made.size} rows are rows of train[{place}], too, because reasoning_gym makes row N "
                    f"of the sum of seed and N: choose {free} or more",
                )


def write(task: ReasoningGymTask, file: Path, limit: int | None = None) -> None:
    """Writes the rows to `file`, complete or not at all.

    Raises:
        DatasetError: see rows.
    """
    partial = file.with_name(file.name + ".partial")
    with partial.open("wb") as output:
        output.writelines(rows(task, limit))
    os.replace(partial, file)


def check_scoring(task: ReasoningGymTask) -> None:
    """Scores the right answers of the first rows as the server will: from JSON. The server turns an exception
    of the scorer into a reward of 0, so it has to be found here.

    Raises:
        DatasetError: the scorer fails on rows that went through JSON.
    """
    import reasoning_gym

    for line in rows(task, SCORED_ROWS):
        row = orjson.loads(line)
        entry = {key: row[key] for key in ("question", "answer", "metadata")}
        name = row["metadata"].get("source_dataset")
        try:
            reasoning_gym.get_score_answer_fn(name)(answer=entry["answer"], entry=entry)
        except Exception as error:
            raise DatasetError(
                f"{task.task} can't be scored: its scorer fails on rows that were read from JSON "
                f"({type(error).__name__}: {error})"
            ) from error


def _row(entry: dict[str, Any], task: ReasoningGymTask) -> dict[str, Any]:
    prompt, prefix = entry["question"], task.prompt_prefix
    if prefix:
        prompt = prefix + ("" if prefix[-1].isspace() else "\n\n") + prompt
    turns = [{"role": message.role, "content": message.content} for message in task.messages]
    return {"responses_create_params": {"input": [*turns, {"role": "user", "content": prompt}]}, **entry}


def _dataset(task: ReasoningGymTask) -> Any:
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS

    if task.task not in DATASETS:
        raise DatasetError(f"reasoning_gym has no task {task.task!r}: {nearest(task.task, DATASETS)}")
    settings = dict(task.config)
    known = {field.name for field in dataclasses.fields(DATASETS[task.task][1])} - {"size", "seed"}
    for key in settings:
        if key in ("size", "seed"):
            raise DatasetError(f"config.{key} is set by reasoningGym.{key}")
        if key not in known:
            raise DatasetError(f"config.{key} isn't a setting of {task.task}: {nearest(key, known)}")
    try:
        if task.task == "composite":
            settings["datasets"] = [DatasetSpec(**spec) for spec in settings.get("datasets", [])]
        return reasoning_gym.create_dataset(task.task, size=task.size, seed=task.seed, **settings)
    except Exception as error:  # assertions of the task's own validate(), mostly
        text = str(error) or "the settings don't fit together"
        raise DatasetError(f"config of {task.task} is refused: {text}") from error
