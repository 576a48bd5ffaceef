"""TRL's GRPOTrainer as a trainer of its own (examples/trainers/grpo), with a real vLLM and the real gateway: what it
sends by the contract is what vLLM computes with, and the policy learns."""

import asyncio
import json
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

from gymtrain_api.wiring import TrainerProgress
from gymtrain_trainer.weights import ParityCheck, model_logprobs
from tests.support.fake_vllm import free_port, serving
from tests.support.real_gateway import TRAINED, Asked, asking
from tests.support.real_vllm import START_SECONDS, Expected, Server, serving_tiny_model

EXAMPLES = Path(__file__).parents[3] / "examples" / "trainers"
STEPS = 12
ROWS = 8
TOKENS = 12
LOW = 100  # token ids below are what the environment wants
TRAINING_SECONDS = 300
SAME = 1e-4  # of log-probabilities, in float32
SPEC: dict[str, Any] = {
    "trainer": {
        "image": "grpo:1",
        "command": ["python", "train.py"],
        "config": {
            "learning_rate": 3e-3,
            "lr_scheduler_type": "constant",
            "max_steps": STEPS,
            "num_generations": 8,
            "per_device_train_batch_size": 32,
            "max_completion_length": TOKENS,
            "save_steps": 100,
            "seed": 1,
        },
    },
    "rollout": {"maxStaleness": 0, "maxConcurrent": 32},
    "weightSync": {"transport": "HTTPFull"},
}

pytestmark = [pytest.mark.torch, pytest.mark.large, pytest.mark.timeout(START_SECONDS + TRAINING_SECONDS + 120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_tiny_model(tmp_path_factory.mktemp("vllm"), **SPEC) as made:
        yield made


class Agent:
    """An agent of one turn, that asks the gateway once there is one, and rewards low token ids."""

    def __init__(self) -> None:
        self.gateway: asyncio.Future[Asked] = asyncio.get_running_loop().create_future()
        self.rewards: list[float] = []
        self.versions: list[str] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/", self._root), web.post("/run", self._run)])
        return app

    async def _root(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _run(self, request: web.Request) -> web.Response:
        asked = (await request.json())["responses_create_params"]
        gateway = await self.gateway
        message = await gateway.chat(
            **TRAINED,
            messages=asked["input"],
            temperature=asked["temperature"],
            max_completion_tokens=asked["max_output_tokens"],
        )
        self.versions += gateway.entry(message).versions
        tokens = message["generation_token_ids"]
        self.rewards.append(sum(token < LOW for token in tokens) / len(tokens))
        fields = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
        item = {"type": "message", **{field: message[field] for field in fields}}
        return web.json_response({"reward": self.rewards[-1], "response": {"output": [item]}})


def _place(folder: Path, server: Server, agent: int, trainer: int) -> dict[str, str]:
    """What the trainer's pod finds; returns its variables."""
    for name in ("data", "checkpoints", "scratch"):
        (folder / name).mkdir(parents=True)
    (folder / "model").symlink_to(server.folder / "model")
    rows = [
        json.dumps({"responses_create_params": {"input": [{"role": "user", "content": f"{number}"}]}}).encode() + b"\n"
        for number in range(ROWS)
    ]
    offsets = [sum(map(len, rows[:number])) for number in range(ROWS + 1)]
    (folder / "data" / "rows.jsonl").write_bytes(b"".join(rows))
    (folder / "data" / "offsets").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
    file = {"file": "rows.jsonl", "offsets_file": "offsets", "rows": ROWS, "weight": 1, "default_agent": "agent"}
    (folder / "data" / "index.json").write_text(json.dumps({"train": [file]}))
    run = json.loads((server.folder / "run.json").read_text())
    run |= {"inference_url": f"http://127.0.0.1:{server.port}", "inference_pods_host": "127.0.0.1"}
    run |= {"agents": {"agent": f"http://127.0.0.1:{agent}"}, "spec": _whole(run["spec"])}
    (folder / "run.json").write_text(json.dumps(run))
    return {
        "GYMTRAIN_ATTEMPT": "3",
        "GYMTRAIN_RUN_CONFIG": str(folder / "run.json"),
        "GYMTRAIN_ROOT": str(folder),
        "GYMTRAIN_TERMINATION_LOG": str(folder / "last-words"),
        "GYMTRAIN_TRAINER_PORT": str(trainer),
        "OMP_NUM_THREADS": "1",
    }


def _whole(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with all defaults, as the operator writes it."""
    from gymtrain_api.spec import GymTrainingRunSpec

    return GymTrainingRunSpec.model_validate(spec).model_dump(mode="json", by_alias=True)


async def test_what_it_sends_is_what_vllm_computes_with(server: Server, tmp_path: Path) -> None:
    for file in ("minimal/contract.py", "grpo/train.py"):
        shutil.copy(EXAMPLES / file, tmp_path)
    agent, agent_port, trainer_port = Agent(), free_port(), free_port()
    environment = {**os.environ, **_place(tmp_path / "pod", server, agent_port, trainer_port)}
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(tmp_path / "train.py"), env=environment, stdout=log, stderr=log
        )
        try:
            async with (
                serving(agent.app(), "127.0.0.1", agent_port),
                asyncio.timeout(TRAINING_SECONDS),
                asking(server, f"http://127.0.0.1:{trainer_port}", seconds=TRAINING_SECONDS) as gateway,
            ):
                agent.gateway.set_result(gateway)
                code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    text = (tmp_path / "log").read_text()
    assert code == 0, text
    progress = TrainerProgress.model_validate_json((tmp_path / "pod" / "last-words").read_text())
    assert (progress.phase, progress.step, progress.weight_version) == ("complete", STEPS, f"demo:3:{STEPS}"), text
    assert server.ready() == (0, "")

    # Each rollout is of the version that was sent before it, and of no other.
    a_step = len(agent.versions) // STEPS
    assert agent.versions == [f"demo:3:{step + 1}" for step in range(STEPS) for _ in range(a_step)]

    (sent,) = (tmp_path / "pod" / "scratch" / "weights").iterdir()
    model = AutoModelForCausalLM.from_pretrained(sent, dtype=torch.float32)
    expected = Expected(ParityCheck(prompts=[[5, 6, 7], [9, 10]], threshold=SAME), model_logprobs(model))
    assert await asyncio.to_thread(server.difference, expected) < SAME

    rewards = [sum(agent.rewards[step * a_step :][:a_step]) / a_step for step in range(STEPS)]
    print("mean reward by step:", *(f"{reward:.3f}" for reward in rewards))
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.05, rewards
