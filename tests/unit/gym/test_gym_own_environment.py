"""examples/environment: an environment that isn't NeMo Gym's, as its author would bring it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from gymtrain_api.wiring import RunConfig
from gymtrain_gym import preflight
from gymtrain_gym.datasets.preparation import Folders
from tests.support.fake_policy import Message
from tests.support.gym_cluster import PolicyCluster

type MakeRun = Callable[..., RunConfig]

pytestmark = pytest.mark.gym

TEMPLATE = Path(__file__).parents[3] / "examples" / "environment"
SERVER = Path("resources_servers/hidden_number")
CONFIG = SERVER / "configs" / "hidden_number.yaml"
AGENT = "hidden_number_simple_agent"


def bisecting(messages: list[Message]) -> Message:
    """Guesses the middle of what is left, and says the number when it is right."""
    low, high = 1, 100
    guess = 50
    for message in messages:
        if message["role"] != "tool":
            continue
        answer = json.loads(message["content"])["answer"]
        if answer == "right":
            return {"content": f"It is {guess}."}
        low, high = (guess + 1, high) if answer == "higher" else (low, guess - 1)
        guess = (low + high) // 2
    function = {"name": "guess", "arguments": json.dumps({"number": guess})}
    call = {"id": f"call_{low}_{high}", "type": "function", "function": function}
    return {"content": "Let me guess.", "tool_calls": [call]}


def rows(name: str) -> list[dict[str, Any]]:
    """Of one of its files."""
    return [json.loads(line) for line in (TEMPLATE / SERVER / "data" / f"{name}.jsonl").read_text().splitlines()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PolicyCluster]:
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(TEMPLATE / "resources_servers", folder / "resources_servers")
    config = yaml.safe_load((TEMPLATE / CONFIG).read_text())
    names = ["head_server", "hidden_number", AGENT]
    async with PolicyCluster.started(folder, bisecting, config, names) as cluster:
        yield cluster


@pytest.mark.asyncio(loop_scope="module")
async def test_its_rollouts_have_state_and_rewards_of_their_own(servers: PolicyCluster) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        for row, reward in (({**rows("example")[0], "number": 50}, 1.0), ({**rows("example")[0], "number": 51}, 0.9)):
            async with session.post(servers.url(AGENT, "/run"), json=row) as answer:
                body = await answer.json()
            assert answer.status == 200
            assert body["reward"] == reward, "51 takes six guesses of a bisection, one more than are free"
            turn = body["response"]["output"][-1]
            assert turn["content"][0]["text"] == f"It is {row['number']}."
            assert turn["generation_token_ids"]


def test_preflight_takes_it_with_the_datasets_that_its_config_lists(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TEMPLATE)  # as the image has it
    run = make_run([{"fromGym": {"types": ["train"]}}], [str(CONFIG)])
    verdict = preflight.check(run, Folders(sources=tmp_path / "sources", data=tmp_path / "data"))
    assert verdict.findings == []
    assert [(file.rows, file.default_agent) for file in verdict.data.train] == [(128, AGENT)]


def test_its_data_is_what_its_program_makes(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATE / SERVER, tmp_path / "server")
    spec = importlib.util.spec_from_file_location("make_data", tmp_path / "server" / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    for file in (tmp_path / "server" / "data").iterdir():
        file.unlink()
    program.main()
    for file in (TEMPLATE / SERVER / "data").iterdir():
        assert (tmp_path / "server" / "data" / file.name).read_text() == file.read_text()


def test_its_own_tests_pass(tmp_path: Path) -> None:
    shutil.copytree(TEMPLATE / "resources_servers", tmp_path / "resources_servers")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SERVER / "tests")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
