"""From a store to the trainer: fetched, checked by preflight, indexed by the data container, drawn by the trainer."""

import json
from pathlib import Path

import pytest

from gymtrain_gym import data, preflight
from gymtrain_gym.datasets.preparation import Folders
from gymtrain_trainer.data.rows import Tasks, read_index
from tests.data_sources.conftest import Fetch, Store, run_config
from tests.support.specs import smallest_run

pytestmark = pytest.mark.data_sources

AGENT = "workplace_assistant_simple_agent"
CONFIG = "resources_servers/workplace_assistant/configs/workplace_assistant.yaml"


def test_rows_of_a_file_from_windows_reach_the_trainer(s3: Store, fetch: Fetch, tmp_path: Path) -> None:
    rows = [{"responses_create_params": {"input": f"ä {number}"}, "number": number} for number in range(50)]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    s3.put("windows.jsonl", text.encode("utf-8-sig"))
    source = "s3://rows/windows.jsonl"
    done = fetch(source, secret=s3.secret)
    assert done.code == 0, done.output

    spec = smallest_run(data={"train": [{"source": source}], "storage": {"size": "1Gi"}})["spec"]
    run = run_config({**spec, "gym": {"configPaths": [CONFIG]}})
    folders = Folders(sources=tmp_path / "sources", data=tmp_path / "data", fetched=done.folder)
    assert preflight.check(run, folders).findings == []
    agents = {AGENT: "http://agent:8000"}
    (tmp_path / "run.json").write_text(run.model_copy(update={"agents": agents}).model_dump_json(by_alias=True))
    assert data.main(tmp_path / "run.json", folders) == 0
    tasks = Tasks(read_index(folders.data / "index.json"), agents, seed=0)
    drawn = [tasks.at(position) for position in range(50)]
    assert sorted(task.row["number"] for task in drawn) == list(range(50))
    assert {task.agent for task in drawn} == {AGENT}
