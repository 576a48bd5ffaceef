"""Rows of the indexed datasets."""

import json
from pathlib import Path

import pytest

from gymtrain_trainer.data.order import in_proportion
from gymtrain_trainer.data.rows import RowFile, Tasks, ValidationTasks, data_digest, read_index
from gymtrain_trainer.errors import DataError
from tests.unit.trainer.trainer_data import question, write_dataset, write_index

AGENTS = {"adder": "http://adder:8000", "other": "http://other:8000"}


def test_every_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [question(n) for n in range(20)]
    index = read_index(write_index(tmp_path, write_dataset(tmp_path, rows)))
    file = RowFile(index.train[0])
    assert [file.row(n) for n in range(20)] == rows


def test_a_row_goes_to_the_agent_that_it_names(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, [question(1, agent="other")])
    tasks = Tasks(read_index(write_index(tmp_path, file)), AGENTS, seed=0)
    assert tasks.at(0).url == "http://other:8000"


def test_a_row_without_agent_goes_to_the_datasets_default(tmp_path: Path) -> None:
    tasks = Tasks(read_index(write_index(tmp_path, write_dataset(tmp_path, [question(1)]))), AGENTS, seed=0)
    assert tasks.at(0).agent == "adder"


def test_a_row_of_an_unknown_agent_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, [question(1, agent="ader")])
    tasks = Tasks(read_index(write_index(tmp_path, file)), AGENTS, seed=0)
    with pytest.raises(DataError, match=r"row 0 goes to agent 'ader', the run has \['adder', 'other'\]"):
        tasks.at(0)


def test_an_unknown_default_agent_is_refused_before_any_rollout(tmp_path: Path) -> None:
    index = read_index(write_index(tmp_path, write_dataset(tmp_path, [question(1)], agent="nobody")))
    with pytest.raises(DataError, match="nobody"):
        Tasks(index, AGENTS, seed=0)


def test_offsets_of_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, [question(1)]).model_copy(update={"rows": 2})
    with pytest.raises(DataError, match="2 rows need 24"):
        RowFile(read_index(write_index(tmp_path, file)).train[0])


def test_a_file_that_changed_since_it_was_indexed_is_an_error(tmp_path: Path) -> None:
    index = read_index(write_index(tmp_path, write_dataset(tmp_path, [question(1), question(2)])))
    file = RowFile(index.train[0])
    path = tmp_path / "train-0.jsonl"
    path.write_bytes(b"##" + path.read_bytes()[:-2])
    with pytest.raises(DataError, match="changed since it was indexed"):
        file.row(1)


@pytest.mark.parametrize("file", ["/etc/gymtrain/token/token", "../scratch/home/x", "../../other"])
def test_an_index_that_names_a_file_beside_the_datasets_is_refused(tmp_path: Path, file: str) -> None:
    """Its rows would be sent to the environment's servers."""
    folder = tmp_path / "gymtrain" / "data"
    folder.mkdir(parents=True)
    path = write_index(folder, write_dataset(folder, [question(1)]))
    index = json.loads(path.read_text())
    index["train"][0]["file"] = file
    path.write_text(json.dumps(index))
    with pytest.raises(DataError, match="is in none of"):
        read_index(path)


def test_an_index_that_links_to_a_file_beside_the_datasets_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "gymtrain" / "data"
    folder.mkdir(parents=True)
    path = write_index(folder, write_dataset(folder, [question(1)]))
    name = json.loads(path.read_text())["train"][0]["file"]
    (folder / name).rename(tmp_path / "secret")
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="is in none of"):
        read_index(path)


@pytest.mark.parametrize("beside", ["sources/0", "fetched/0"])
def test_an_index_may_name_files_of_mounted_and_fetched_datasets(tmp_path: Path, beside: str) -> None:
    folder, elsewhere = tmp_path / "gymtrain" / "data", tmp_path / "gymtrain" / beside
    folder.mkdir(parents=True)
    elsewhere.mkdir(parents=True)
    path = write_index(folder, write_dataset(folder, [question(1)]))
    index = json.loads(path.read_text())
    name = Path(index["train"][0]["file"]).name
    (folder / name).rename(elsewhere / name)
    index["train"][0]["file"] = str(elsewhere / name)
    path.write_text(json.dumps(index))
    assert RowFile(read_index(path).train[0]).row(0)


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        read_index(write_index(tmp_path))


def test_a_run_that_only_evaluates_has_no_training_data(tmp_path: Path) -> None:
    held_out = write_dataset(tmp_path, [question(1)])
    index = read_index(write_index(tmp_path, validation=[held_out]))
    assert (Tasks(index, AGENTS, seed=0).rows, len(ValidationTasks(index, AGENTS))) == (0, 1)


def validation(folder: Path, *sizes: int, most: int | None = None) -> ValidationTasks:
    sets = [
        write_dataset(folder, [question(100 * n + row) for row in range(size)], name=f"validation-{n}")
        for n, size in enumerate(sizes)
    ]
    index = write_index(folder, write_dataset(folder, [question(1)]), validation=sets)
    return ValidationTasks(read_index(index), AGENTS, most)


def test_an_evaluation_has_every_row_of_every_dataset_in_order(tmp_path: Path) -> None:
    tasks = validation(tmp_path, 3, 2)
    numbers = [tasks.at(number).row["number"] for number in range(len(tasks))]
    assert numbers == [0, 1, 2, 100, 101]
    assert [tasks.at(number).position for number in range(5)] == [0, 1, 2, 3, 4]


def test_fewer_tasks_are_the_first_ones_in_proportion(tmp_path: Path) -> None:
    tasks = validation(tmp_path, 6, 3, most=3)
    assert [tasks.at(number).row["number"] for number in range(len(tasks))] == [0, 1, 100]


@pytest.mark.parametrize(
    ("rows", "most", "taken"),
    [([5, 5], 3, [2, 1]), ([1, 1, 1], 2, [1, 1, 0]), ([10, 1], 5, [5, 0]), ([4, 4], 100, [4, 4]), ([7], 3, [3])],
)
def test_largest_remainders_share_out_what_is_left(rows: list[int], most: int, taken: list[int]) -> None:
    assert in_proportion(rows, most) == taken


def test_an_unknown_agent_of_validation_data_is_refused(tmp_path: Path) -> None:
    sets = [write_dataset(tmp_path, [question(1)], name="validation-0", agent="nobody")]
    index = read_index(write_index(tmp_path, write_dataset(tmp_path, [question(1)]), validation=sets))
    with pytest.raises(DataError, match="nobody"):
        ValidationTasks(index, AGENTS)


def test_validation_data_is_no_part_of_what_a_place_in_the_data_is_about(tmp_path: Path) -> None:
    file = write_dataset(tmp_path, [question(n) for n in range(3)])
    without = data_digest(read_index(write_index(tmp_path, file)), 1)
    sets = [write_dataset(tmp_path, [question(9)], name="validation-0")]
    assert data_digest(read_index(write_index(tmp_path, file, validation=sets)), 1) == without
