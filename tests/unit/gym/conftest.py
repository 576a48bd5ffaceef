"""Tests of the Gym image's code. They need that image's libraries, which clash with the other parts', so they are
collected only where those are installed: `uv run --extra gym --extra gym-swe pytest tests/unit/gym`."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("nemo_gym") else ["test_gym_*.py"]

REASONING_GYM = "resources_servers/reasoning_gym/configs/reasoning_gym.yaml"
WORKPLACE = "resources_servers/workplace_assistant/configs/workplace_assistant.yaml"


def pytest_configure(config: pytest.Config) -> None:
    # Upstream's own config files use names that upstream deprecated; reasoning_gym's dependencies compare by `is`.
    config.addinivalue_line("filterwarnings", "ignore:.* deprecated for dataset:DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore::SyntaxWarning")


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The code under test changes the environment and reads the working directory, as processes of their own may."""
    import os

    before = dict(os.environ)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(before)


def run_of(spec: Any, name: str = "run") -> Any:
    """A RunConfig with a spec."""
    from gymtrain_api.wiring import RunConfig

    return RunConfig.model_validate(
        {
            "name": name,
            "namespace": "default",
            "spec": spec,
            "inference_url": "http://run-inference:8000",
            "inference_pods_host": "run-inference-pods",
            "gateway_url": "http://run-gateway:8000",
            "trainer_host": "run-trainer",
        }
    )


@pytest.fixture
def make_run() -> Callable[..., Any]:
    """Builds a RunConfig from spec.data.train and spec.gym."""

    def make(train: list[dict[str, Any]] | None = None, config_paths: list[str] | None = None, **gym: Any) -> Any:
        task = {"reasoningGym": {"task": "chain_sum", "size": 10}}
        spec = {
            "model": {"source": "hf://org/model"},
            "gym": {"configPaths": config_paths or [REASONING_GYM], **gym},
            "data": {"train": train or [task]},
        }
        return run_of(spec)

    return make
