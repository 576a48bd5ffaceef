"""The readiness probe, run as the pod runs it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gymtrain_vllm
from tests.support.fake_vllm import FakeVLLM, free_port, serving

PROBE = Path(gymtrain_vllm.__file__).parent / "ready.py"


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """Files of a pod of run `demo`."""
    (tmp_path / "run.json").write_text(json.dumps({"name": "demo"}))
    (tmp_path / "scratch").mkdir()
    return {
        "GYMTRAIN_RUN_CONFIG": str(tmp_path / "run.json"),
        "GYMTRAIN_ROOT": str(tmp_path),
        "GYMTRAIN_INFERENCE_PORT": str(free_port()),
    }


async def probe(place: dict[str, str]) -> tuple[int, str]:
    def run() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-I", "-S", str(PROBE)]
        return subprocess.run(argv, env=place, capture_output=True, text=True, timeout=30)

    done = await asyncio.to_thread(run)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


async def ask(place: dict[str, str], pod: FakeVLLM) -> tuple[int, str]:
    async with serving(pod.app(), "127.0.0.1", int(place["GYMTRAIN_INFERENCE_PORT"])):
        return await probe(place)


async def test_a_pod_with_weights_of_the_run_is_ready(place: dict[str, str], tmp_path: Path) -> None:
    pod = FakeVLLM(tmp_path)
    pod.version = "demo:0:3"
    assert await ask(place, pod) == (0, "")


async def test_a_pod_with_the_weights_it_started_with_is_not(place: dict[str, str], tmp_path: Path) -> None:
    assert await ask(place, FakeVLLM(tmp_path)) == (1, "waiting for the trainer's first weights")


async def test_a_pod_with_weights_of_another_run_is_not(place: dict[str, str], tmp_path: Path) -> None:
    pod = FakeVLLM(tmp_path)
    pod.version = "demo2:0:3"
    assert await ask(place, pod) == (1, "holds weights demo2:0:3, not of run demo")


def describe(tmp_path: Path, **spec: Any) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"name": "demo", "spec": spec}))


async def test_with_adapters_a_pod_is_ready_once_it_holds_one_of_the_run(place: dict[str, str], tmp_path: Path) -> None:
    describe(tmp_path, model={"lora": {"r": 8}})
    pod = FakeVLLM(tmp_path)
    pod.adapters = {"demo2:0:1": "/other"}
    assert (await ask(place, pod))[0] == 1
    pod.adapters["demo:0:1"] = "/ours"
    assert await ask(place, pod) == (0, "")


async def test_an_adapter_is_not_enough_where_all_weights_are_trained(place: dict[str, str], tmp_path: Path) -> None:
    describe(tmp_path, model={"lora": None})
    pod = FakeVLLM(tmp_path)
    pod.adapters = {"demo:0:1": "/x"}
    assert (await ask(place, pod))[0] == 1


async def test_without_a_transport_a_healthy_pod_is_ready(place: dict[str, str], tmp_path: Path) -> None:
    describe(tmp_path, weightSync={"transport": "None"})
    assert await ask(place, FakeVLLM(tmp_path)) == (0, "")


async def test_a_server_that_does_not_answer_is_not(place: dict[str, str]) -> None:
    code, reason = await probe(place)
    assert code == 1
    assert "does not answer" in reason


async def test_an_unhealthy_server_is_not(
    place: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = FakeVLLM(tmp_path)
    pod.version = "demo:0:3"

    async def dead(_: dict[str, Any]) -> tuple[int, Any]:
        return 503, {}

    monkeypatch.setattr(pod, "do_health", dead)
    assert await ask(place, pod) == (1, "vLLM is not healthy: /health says 503")


async def test_where_the_release_cannot_say_the_plugins_note_counts(place: dict[str, str], tmp_path: Path) -> None:
    pod = FakeVLLM(tmp_path)
    pod.knows_version = False
    assert (await ask(place, pod))[0] == 1
    (tmp_path / "scratch" / "held-weights").write_text("demo:0:1")
    assert await ask(place, pod) == (0, "")


def test_the_note_is_where_the_plugin_writes_it(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from gymtrain_vllm import ready

    for name, value in place.items():
        monkeypatch.setenv(name, value)
    ready.write_note("demo:0:1")
    assert (Path(place["GYMTRAIN_ROOT"]) / "scratch" / "held-weights").read_text() == "demo:0:1"
    ready.remove_note()
    assert not Path(ready.note_file()).exists()
