"""Upstream's mini_swe_agent_2 under the launcher, from /run to the reward: its own loop, the provider `gymtrain`,
SWE-bench's own grading. A scripted policy plays; commands run in a folder that stands for the image."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gymtrain_trainer.errors import AnswerError
from gymtrain_trainer.rollouts.answer import parse_answer
from tests.support.fake_policy import FakePolicy, Reply
from tests.support.fake_sandboxes import Ended, FakeSandboxes, in_folder
from tests.support.gym_cluster import GymCluster, model_server
from tests.support.scripted_policy import Play, Script, bash

pytestmark = [pytest.mark.gym, pytest.mark.asyncio(loop_scope="module")]

CONDA = Path(__file__).parents[3] / "examples" / "swe" / "base" / "conda.sh"
BROKEN, MENDED = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"
TEST = "from adder import add\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
NEW_TEST = "\n\ndef test_sum():\n    assert add(2, 3) == 5\n"


class Image:
    """A folder with what a task's image has at /testbed and /opt/miniconda3."""

    def __init__(self, folder: Path) -> None:
        self.conda, self.testbed, self.home = folder / "conda", folder / "testbed", folder / "home"
        subprocess.run([CONDA, self.conda], check=True)
        programs = self.conda / "envs" / "testbed" / "bin"
        programs.mkdir(parents=True)
        for name, arguments in (("python", ""), ("pytest", "-m pytest -p no:cacheprovider")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            (programs / name).chmod(0o755)
        (self.testbed / "tests").mkdir(parents=True)
        self.home.mkdir()
        (self.testbed / "adder.py").write_text(BROKEN)
        (self.testbed / "tests" / "test_adder.py").write_text(TEST)
        (self.testbed / "conftest.py").write_text("")
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "--message", "base")

    def git(self, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=self.testbed, check=True, capture_output=True, text=True).stdout

    def patch(self, name: str, text: str) -> str:
        (self.testbed / name).write_text(text)
        patch = self.git("diff")
        self.git("checkout", "--quiet", "--", ".")
        return patch

    async def execute(self, body: dict[str, Any]) -> Ended:
        def here(text: str) -> str:
            return text.replace("/opt/miniconda3", str(self.conda)).replace("/testbed", str(self.testbed))

        # All sandboxes share the folder. Byte code of one would stand for the source of the next: both sources have as
        # many bytes, and Python tells them apart by that and by the second in which they were written.
        env = {"PATH": f"{self.conda / 'bin'}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
        return await in_folder(self.home, {**body, "shell": here(body["shell"]), "cwd": here(body["cwd"]), "env": env})


class World:
    """The servers, and what stands around them."""

    def __init__(self, cluster: GymCluster, policy: FakePolicy, image: Image, sandboxes: FakeSandboxes) -> None:
        self.cluster, self.policy, self.image, self.sandboxes = cluster, policy, image, sandboxes
        self.row = {
            "instance_id": "psf__requests-9.9.9",
            "repo": "psf/requests",
            "version": "2.31",  # its test command is SWE-bench's
            "base_commit": image.git("rev-parse", "HEAD").strip(),
            "image_name": "gymtrain/swe-adder:dev",
            "problem_statement": "The sum of two numbers is wrong.",
            "patch": image.patch("adder.py", MENDED),
            "test_patch": image.patch("tests/test_adder.py", TEST + NEW_TEST),
            "FAIL_TO_PASS": ["tests/test_adder.py::test_sum"],
            "PASS_TO_PASS": ["tests/test_adder.py::test_zero"],
            "subset": "test",
            "split": "train",
            "responses_create_params": {"input": [], "temperature": 1.0, "top_p": 1.0},
        }

    async def run(self, play: Play) -> dict[str, Any]:
        return await self.post(Script([self.row], play))

    async def post(self, reply: Reply) -> dict[str, Any]:
        body = await self.answer(reply)
        assert "error" not in body["metadata"], body["metadata"]
        return body

    async def answer(self, reply: Reply) -> dict[str, Any]:
        self.policy.reply = reply
        self.image.git("checkout", "--quiet", "--", ".")
        timeout = aiohttp.ClientTimeout(total=240)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(self.cluster.url("swe", "/run"), json=self.row) as response,
        ):
            assert response.status == 200, await response.text()
            body: dict[str, Any] = await response.json()
            return body


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("swe")
    image = Image(folder / "image")
    policy = FakePolicy(lambda messages: {"content": "?"})
    await policy.start()
    agent = {
        "entrypoint": "app.py",
        "domain": "coding",
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "concurrency": 4,
        "env": "sandbox",
        "sandbox_provider": "sandbox",
        "sandbox_spec": {"resources": {"cpu": 1, "memory_mib": 1024}},
        "sandbox_environment_kwargs": {
            "cwd": "/testbed",
            "conda_env": "testbed",
            "activate_conda": True,
            "user": None,
        },
        "step_limit": 6,
    }
    names = ["head_server", "policy_model", "swe"]
    config = {
        "head_server": {},
        "dry_run": False,
        "policy_model_name": "policy",
        "policy_model": model_server(policy.base_url),
        "sandbox": {"gymtrain": {}},
        "swe": {"responses_api_agents": {"mini_swe_agent_2": agent}},
    }
    async with FakeSandboxes(folder, image.execute) as sandboxes:
        cluster = GymCluster(folder, config)
        environment = {"HOME": str(image.home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        cluster.start(*names, **environment, **sandboxes.environment, GYMTRAIN_DRAIN_SECONDS="4")
        try:
            await cluster.ready(*names)
            yield World(cluster, policy, image, sandboxes)
        finally:
            cluster.terminate("swe")
            await cluster.exit_code("swe", 40)
            cluster.stop()
            await policy.stop()


async def test_the_right_patch_earns_the_reward(world: World) -> None:
    body = await world.run("gold")
    assert body["reward"] == 1.0
    report = body["metadata"]["eval_report"][world.row["instance_id"]]
    assert report["tests_status"]["FAIL_TO_PASS"]["success"] == ["tests/test_adder.py::test_sum"]


async def test_no_patch_earns_nothing(world: World) -> None:
    body = await world.run("empty")
    assert body["reward"] == 0.0
    assert body["metadata"]["eval_report"][world.row["instance_id"]]["tests_status"]


async def test_every_call_of_the_policy_carries_its_token_ids(world: World) -> None:
    asked = len(world.policy.requests)
    body = await world.run("gold")
    turns = [item for item in body["response"]["output"] if "generation_token_ids" in item]
    assert len(turns) == len(world.policy.requests) - asked == 3
    assert all(len(turn["generation_log_probs"]) == len(turn["generation_token_ids"]) > 0 for turn in turns)
    assert all(turn["prompt_token_ids"] for turn in turns)


async def test_earlier_turns_go_back_with_their_token_ids(world: World) -> None:
    body = await world.run("gold")
    turns = [item for item in body["response"]["output"] if "generation_token_ids" in item]
    history = [message for message in world.policy.requests[-1]["messages"] if message["role"] == "assistant"]
    assert [message["generation_token_ids"] for message in history] == [
        turn["generation_token_ids"] for turn in turns[:-1]
    ]
    assert all(message["prompt_token_ids"] for message in history)


async def test_calls_without_a_tool_call_carry_theirs_too(world: World) -> None:
    script = Script([world.row], "empty")

    def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
        complained = any("Tool call error" in str(message.get("content")) for message in messages)
        return script(messages) if complained else {"content": "I would rather talk."}

    body = await world.post(reply)
    turns = [item for item in body["response"]["output"] if "generation_token_ids" in item]
    assert len(turns) == 3
    assert turns[0]["content"][0]["text"] == "I would rather talk."


async def test_rollouts_run_side_by_side_and_leave_no_sandbox(world: World) -> None:
    bodies = await asyncio.gather(*(world.run("empty") for _ in range(3)))
    assert [body["reward"] for body in bodies] == [0.0] * 3
    assert world.sandboxes.open() == []


async def test_a_sandbox_that_is_lost_is_told_and_not_scored(world: World) -> None:
    def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if any(message["role"] == "assistant" for message in messages):  # in the middle of the rollout
            for box in world.sandboxes.open():
                box.state, box.reason, box.message = "Failed", "Evicted", "the node ran out of memory"
        return bash("true")

    body = await world.answer(reply)
    assert body["reward"] == 0.0  # what upstream makes of it
    assert body["mask_sample"] is True
    with pytest.raises(AnswerError, match=r"is lost.*Failed \(Evicted\) the node ran out of memory"):
        parse_answer(body)


async def test_an_agent_that_is_stopped_ends_at_its_deadline_and_leaves_no_sandbox(world: World) -> None:
    working = asyncio.create_task(world.post(lambda messages: bash("sleep 600")))
    await world.sandboxes.until(lambda: bool(world.sandboxes.open()) and world.sandboxes.executing > 0)
    world.cluster.terminate("swe")
    assert await world.cluster.exit_code("swe", 40) == 0
    assert world.sandboxes.open() == []
    with pytest.raises((aiohttp.ClientError, AssertionError)):
        await working
