"""`vllm serve` loads the final model as it lies on the volume: of one process, and of two that shard it.

A real vLLM on the CPU, started with the folder and nothing else that says what is in it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_trainer.stopping import StopSignal
from tests.support.fake_vllm import free_port
from tests.unit.trainer.test_trainer_ranks import SHARDED, train_ranks
from tests.unit.trainer.trainer_agent import AgentThread
from tests.unit.trainer.trainer_vllm import VLLM, make_context, run_process

pytestmark = [pytest.mark.torch, pytest.mark.large, pytest.mark.timeout(600)]

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
START_SECONDS = 400


@pytest.fixture
def source(tiny_models: Callable[..., Path]) -> Path:
    folder = tiny_models("bfloat16", head_dim=32)  # the smallest that vLLM's attention on CPUs takes
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """URL of a vLLM that serves a folder: what `vllm serve` starts, whose CLI the CPU build can't run."""
    port, log = free_port(), folder.parent / "vllm.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    command += ["--max-model-len", "64", "--enforce-eager"]
    # No compiler is there, and one process imports vLLM once: as gymtrain_vllm.arguments sets it for CPUs.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM did not start: {log.read_text()[-4000:]}")
            try:
                urllib.request.urlopen(f"{url}/health", timeout=60)
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def chat(url: str, folder: Path) -> dict[str, Any]:
    """One token, by the folder's own chat template."""
    body = {"model": str(folder), "messages": [{"role": "user", "content": "t5 t6"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def check_served(folder: Path) -> None:
    """The folder has all that a model's has, and vLLM generates with it."""
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "README.md"} <= {
        file.name for file in folder.iterdir()
    }
    with serving(folder) as url:
        assert chat(url, folder)["usage"]["completion_tokens"] == 1


def test_vllm_serves_the_model_of_one_process(
    tmp_path: Path, source: Path, served: AgentThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = VLLM(source)
    served.agent.behaviour = vllm.answer
    made = make_context(tmp_path, source, served.agent.url, {}, max_steps=1)
    run_process(made, vllm, StopSignal(), monkeypatch.setattr)
    check_served(made.run_folder / "model")


def test_vllm_serves_the_model_that_two_processes_sharded(tmp_path: Path, source: Path) -> None:
    codes, _ = train_ranks(tmp_path, source, {}, **SHARDED, max_steps=1)
    assert codes == [0, 0]
    check_served(tmp_path / "checkpoints" / "model")
