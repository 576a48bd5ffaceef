"""NeMo Gym's own data preparation, as the preflight pod runs it, and what fromGym then stands for."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.wiring import RunConfig
from gymtrain_gym import data, preflight
from gymtrain_gym.datasets.preparation import Folders
from tests.support.hub import hub

pytestmark = pytest.mark.gym

ROOT = Path(__file__).parents[3]
WORKPLACE = "resources_servers/workplace_assistant/configs/workplace_assistant.yaml"
AGENT = "workplace_assistant_simple_agent"
ROW = {"responses_create_params": {"input": "2 + 2 ="}}
LINES = (json.dumps(ROW) + "\n") * 3
HUB_DATASET = "nvidia/Nemotron-RL-agent-workplace_assistant"
DOWNLOAD = {"shouldDownload": True, "tokenSecret": {"name": "hub", "key": "token"}}


@dataclass
class Prepared:
    code: int
    output: str
    folders: Folders


@pytest.fixture
def prepare(make_run: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., Prepared]:
    """Runs the init container's program in a process of its own; the test's folder is the image's own one."""

    def run(settings: dict[str, Any], **environ: str) -> Prepared:
        folders = Folders(sources=tmp_path / "sources", data=tmp_path / "data", fetched=tmp_path / "fetched")
        folders.fetched.mkdir(exist_ok=True)
        (tmp_path / "run.json").write_text(run_for(make_run, settings).model_dump_json(by_alias=True))
        program = (
            "import sys; from pathlib import Path; from gymtrain_gym import prepare; "
            f"sys.exit(prepare.main(Path({str(tmp_path / 'run.json')!r}), Path({str(folders.fetched)!r})))"
        )
        parts = os.pathsep.join(str(ROOT / part) for part in ("api", "gym"))
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": parts, "HOME": str(tmp_path), **environ}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        return Prepared(done.returncode, done.stdout + done.stderr, folders)

    return run


def run_for(make_run: Callable[..., RunConfig], settings: dict[str, Any], **choice: Any) -> RunConfig:
    run = make_run([{"fromGym": choice}], [WORKPLACE])
    spec = run.spec.model_dump(by_alias=True, mode="json", exclude_unset=True)
    spec["data"] |= {"prepare": settings, "storage": {"size": "1Gi"}}
    return run.model_copy(update={"spec": type(run.spec).model_validate(spec)})


def put_listed(root: Path, *types: str) -> None:
    for kind in types:
        file = root / f"resources_servers/workplace_assistant/data/{kind}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(LINES)


def test_examples_of_the_image_are_prepared_and_drawn_from(
    prepare: Callable[..., Prepared], make_run: Callable[..., RunConfig]
) -> None:
    settings = {"mode": "example_validation"}
    done = prepare(settings)
    assert done.code == 0, done.output
    verdict = preflight.check(run_for(make_run, settings), done.folders)
    assert verdict.findings == []
    assert [(file.rows, file.agents) for file in verdict.data.train] == [(5, {AGENT: 5})]
    run = run_for(make_run, settings).model_copy(update={"agents": {AGENT: "http://agent:8000"}})
    assert data.prepare(run, done.folders).items == []
    assert (done.folders.fetched / "prepared/example_metrics.json").exists()


def test_files_beside_nemo_gym_s_in_an_image_are_prepared(
    prepare: Callable[..., Prepared], make_run: Callable[..., RunConfig], tmp_path: Path
) -> None:
    put_listed(tmp_path, "train", "validation")
    done = prepare({})
    assert done.code == 0, done.output
    (row, *_) = (done.folders.fetched / "prepared/train.jsonl").read_text().splitlines()
    assert json.loads(row)["agent_ref"] == {"type": "responses_api_agents", "name": AGENT}
    assert sorted(path.name for path in done.folders.fetched.iterdir()) == ["prepared", "prepared.json"]


def test_the_same_is_not_prepared_again_and_another_mode_is(prepare: Callable[..., Prepared], tmp_path: Path) -> None:
    put_listed(tmp_path, "train", "validation")
    prepare({})
    assert "is already there" in prepare({}).output
    assert "is already there" not in prepare({"mode": "example_validation"}).output


def test_missing_data_is_refused_with_upstream_s_words(prepare: Callable[..., Prepared]) -> None:
    done = prepare({})
    assert done.code == 78
    assert "gymtrain: spec.data.prepare: NeMo Gym's data preparation ended with AssertionError: Missing" in done.output
    assert "should_download" in done.output


def test_missing_data_is_downloaded_with_the_token(prepare: Callable[..., Prepared]) -> None:
    with hub() as there:
        there.files[HUB_DATASET] = {"train.jsonl": LINES.encode(), "validation.jsonl": LINES.encode()}
        there.token = "hf_right"
        done = prepare(DOWNLOAD, HF_ENDPOINT=there.url, GYMTRAIN_DATA_TOKEN="hf_right")
    assert done.code == 0, done.output
    assert len((done.folders.fetched / "prepared/train.jsonl").read_text().splitlines()) == 3
    assert "hf_right" not in done.output
    assert not any(b"hf_right" in file.read_bytes() for file in done.folders.fetched.rglob("*") if file.is_file())


def test_type_that_the_mode_does_not_prepare_is_named(
    prepare: Callable[..., Prepared], make_run: Callable[..., RunConfig]
) -> None:
    settings = {"mode": "example_validation"}
    done = prepare(settings)
    (finding,) = preflight.check(run_for(make_run, settings, types=["train"]), done.folders).findings
    assert finding.where == "spec.data.train[0].fromGym"
    assert finding.message == "data.prepare made no train dataset: there is example. See its mode"
