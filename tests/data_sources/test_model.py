"""hf:// models, fetched by huggingface_hub itself as an init container does, from a stand-in of the hub."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data_sources.conftest import ROOT, run_config
from tests.data_sources.test_proxy import HOST, behind_a_proxy, in_a_pod
from tests.support.hub import Hub
from tests.support.specs import smallest_run

pytestmark = pytest.mark.data_sources

WEIGHTS = bytes(range(256)) * 4096
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": WEIGHTS,
    "model.gguf": b"the same in another format",
    "onnx/model.onnx": b"and in a third",
}


class Pod:
    """What the init container has."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.model = folder / "gymtrain/model"
        self._folder = folder
        self._environ = {"HF_ENDPOINT": hub.url}

    def fetch(self, *arguments: str, revision: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        model = {"source": "hf://org/model"} | ({"revision": revision} if revision else {})
        config = run_config(smallest_run(model=model)["spec"])
        (self._folder / "run.json").write_text(config.model_dump_json(by_alias=True))
        return subprocess.run(
            [sys.executable, "-m", "gymtrain_trainer.fetch", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._folder),
                "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "tracing", "trainer")),
                "GYMTRAIN_RUN_CONFIG": str(self._folder / "run.json"),
                "GYMTRAIN_ROOT": str(self._folder / "gymtrain"),
                "GYMTRAIN_TERMINATION_LOG": str(self._folder / "said"),
                **self._environ,
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )

    def files(self) -> set[str]:
        """What is there, but for what begins with a dot."""
        return {
            path.relative_to(self.model).as_posix()
            for path in self.model.rglob("*")
            if path.is_file() and not path.relative_to(self.model).as_posix().startswith(".")
        }

    def said(self) -> str:
        """The container's last words, which the operator quotes."""
        return (self._folder / "said").read_text()


@pytest.fixture
def pod(tmp_path: Path, the_hub: Hub) -> Pod:
    the_hub.files["org/model"] = dict(MODEL)
    return Pod(tmp_path, the_hub)


def test_a_model_is_fetched_once_without_what_no_loader_reads(pod: Pod, the_hub: Hub) -> None:
    done = pod.fetch()
    assert done.returncode == 0, done.stdout + done.stderr
    assert pod.files() == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (pod.model / "model.safetensors").read_bytes() == WEIGHTS
    the_hub.files.clear()
    assert "is already in" in pod.fetch().stdout


def test_preflight_fetches_no_weights_and_the_pods_that_load_them_do(pod: Pod) -> None:
    assert pod.fetch("--without-weights").returncode == 0
    assert pod.files() == {"config.json", "tokenizer.json"}
    assert pod.fetch().returncode == 0
    assert (pod.model / "model.safetensors").read_bytes() == WEIGHTS


def test_a_connection_that_breaks_is_tried_again(pod: Pod, the_hub: Hub) -> None:
    the_hub.breaks = 2
    done = pod.fetch()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (pod.model / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_private_model_asks_for_a_token_that_opens_it(token: str, pod: Pod, the_hub: Hub) -> None:
    the_hub.token = "hf_right"
    assert pod.fetch(HF_TOKEN=token).returncode == 78
    assert "hf://org/model doesn't exist, or is private: then name a token in spec.model.tokenSecret" in pod.said()
    assert pod.fetch(HF_TOKEN="hf_right").returncode == 0
    assert "config.json" in pod.files()


def test_a_gated_model_says_whose_terms_to_accept(pod: Pod, the_hub: Hub) -> None:
    the_hub.gated.add("org/model")
    assert pod.fetch(HF_TOKEN="hf_right").returncode == 78
    assert "hf://org/model is gated: accept its terms on the hub" in pod.said()
    assert "the token given has no access" in pod.said()


def test_a_revision_that_is_not_there_is_named(pod: Pod) -> None:
    assert pod.fetch(revision="v9").returncode == 78
    assert "hf://org/model has no revision 'v9': see spec.model.revision" in pod.said()


def test_a_model_comes_through_the_proxy(pod: Pod, the_hub: Hub, tmp_path: Path) -> None:
    with behind_a_proxy(the_hub.url, tmp_path) as state:
        done = pod.fetch(**{"HF_ENDPOINT": f"https://{HOST}", **in_a_pod(state)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (pod.model / "model.safetensors").read_bytes() == WEIGHTS
    assert set(state.asked) == {HOST}
