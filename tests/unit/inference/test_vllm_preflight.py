"""Preflight of vLLM's arguments: what is refused without vLLM, and when vLLM is asked."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.wiring import PREFLIGHT_MARK, Finding, InferencePreflight
from gymtrain_vllm import acceptance, options, vllm_internals
from gymtrain_vllm.options import Options
from gymtrain_vllm.preflight import main, preflight
from tests.support.specs import smallest_run
from tests.unit.inference.test_vllm_acceptance import OPTIONS


class Pod:
    """A preflight container, with a vLLM that says `says` when it is asked."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[list[str], bool]] = []
        self.says: list[Finding] = []
        self._folder, self._patch = folder, patch
        for name in ("GYMTRAIN_RUN_CONFIG", "HOME", "TMPDIR", "VLLM_CACHE_ROOT", "VLLM_TARGET_DEVICE"):
            patch.delenv(name, raising=False)
        patch.setattr("os.environ", dict(__import__("os").environ))
        patch.setenv("GYMTRAIN_ROOT", str(folder))
        patch.setenv("GYMTRAIN_RUN_CONFIG", str(folder / "run.json"))
        patch.setattr(acceptance, "refusals", self._refusals)
        self.notes(OPTIONS)

    def _refusals(self, _: Any, line: list[str], *, has_model: bool) -> list[Finding]:
        self.asked.append((line, has_model))
        return self.says

    def notes(self, found: Options | None) -> None:
        self._patch.setattr(options, "load", lambda: found)

    def run(self, *args: str, **blocks: Any) -> InferencePreflight:
        spec = smallest_run(**{"inference": {"args": list(args)}, **blocks})["spec"]
        addresses = {"inference_url": "http://x", "inference_pods_host": "x", "trainer_host": "x"}
        run = {"name": "demo", "namespace": "x", **addresses, "spec": spec}
        (self._folder / "run.json").write_text(json.dumps(run))
        return preflight()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(tmp_path, monkeypatch)


def test_reserved_arguments_are_refused_by_position_all_at_once(pod: Pod) -> None:
    verdict = pod.run("--max-model-len=512", "--served-model-name=mine", "--port", "9000")
    assert [finding.where for finding in verdict.findings] == ["spec.inference.args[1]", "spec.inference.args[2]"]
    assert (
        "--served-model-name can't be set: the Gym config calls the model by this name" in verdict.findings[0].message
    )
    assert not pod.asked


@pytest.mark.parametrize(
    ("argument", "where", "words"),
    [
        ("--data-parallel-size=2", "spec.inference.args[0]", "set spec.inference.replicas"),
        ("--tensor-parallel-size=8", "spec.inference.args", "2 nodes with 2 GPUs each have 4"),
        ("--headless", "spec.inference.args[0]", "and no other pod"),
    ],
)
def test_arguments_that_do_not_fit_a_server_on_several_nodes_are_refused(
    pod: Pod, argument: str, where: str, words: str
) -> None:
    (finding,) = pod.run(inference={"nodes": 2, "gpus": 2, "args": [argument]}).findings
    assert finding.where == where
    assert words in finding.message
    assert not pod.asked


def test_what_the_notes_are_sure_of_costs_no_import(pod: Pod) -> None:
    verdict = pod.run("--max-model-len=512")
    assert (verdict.findings, verdict.asked_vllm, pod.asked) == ([], False, [])


def test_vllm_is_asked_about_the_whole_command_line_where_the_notes_leave_a_doubt(pod: Pod) -> None:
    pod.says = [Finding(where="spec.inference.args[0]", message="no such argument")]
    verdict = pod.run("--max-model-lenn=512")
    assert (verdict.findings, verdict.asked_vllm) == (pod.says, True)
    ((line, has_model),) = pod.asked
    assert line[-1] == "--max-model-lenn=512"
    assert "--logprobs-mode=processed_logprobs" in line
    assert not has_model


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("__version__ = version = '0.24.0+cpu'", True),
        ("__version__ = version = '0.25.0'", False),
        ("__version__ = version = '0.1.dev1+gabc'", False),
        ("# made by hand", False),
    ],
)
def test_a_vllm_that_is_too_old_is_refused_before_it_is_asked(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, refused: bool
) -> None:
    (tmp_path / "_version.py").write_text(f"{text}\n")
    monkeypatch.setattr(vllm_internals, "_package", lambda: tmp_path)
    verdict = pod.run("--max-model-lenn=512")
    if not refused:
        assert (verdict.findings, len(pod.asked)) == ([], 1)
        return
    (finding,) = verdict.findings
    assert finding.where == "spec.inference.image"
    assert "vLLM 0.24.0+cpu is too old: gymtrain needs 0.25 or later" in finding.message
    assert not pod.asked


def test_an_image_without_notes_asks_its_vllm(pod: Pod) -> None:
    pod.notes(None)
    assert pod.run().asked_vllm


def test_vllm_is_asked_about_the_model_where_its_folder_is_filled(pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["Unknown"]}')
    pod.run()
    assert [has_model for _, has_model in pod.asked] == [True]


def test_a_build_for_gpus_is_told_that_it_runs_on_a_cpu(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cuda")
    pod.run("--doubtful", inference={"gpus": 2, "args": ["--doubtful"]})
    assert os.environ["VLLM_TARGET_DEVICE"] == "cpu"
    assert "--tensor-parallel-size=2" in pod.asked[0][0]


def test_an_adapter_too_large_for_vllm_is_named_by_its_field(pod: Pod) -> None:
    lora = {"source": "hf://a/b", "lora": {"r": 1024}}
    (finding,) = pod.run(model=lora, trainer={"checkpoint": {"size": "1Gi"}}).findings
    assert finding.where == "spec.model.lora"
    assert finding.message.startswith("rank 1024 is more than vLLM serves")


def test_a_variable_that_the_run_depends_on_is_refused(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    (finding,) = pod.run().findings
    assert finding.where == "spec.inference.template"
    assert "VLLM_SERVER_DEV_MODE must be 1" in finding.message


def test_the_verdict_is_one_line_on_stdout(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    pod.run()
    assert main() == 0
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text]
    assert InferencePreflight.model_validate_json(line.removeprefix(PREFLIGHT_MARK)).findings == []


def test_notes_come_back_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_internals, "parser_digest", lambda: "x")
    options.write(OPTIONS, tmp_path / "notes.json")
    assert options.load(tmp_path / "notes.json") == OPTIONS


@pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": "x"}', '{"digest": "x", "values": 3}'])
def test_notes_that_can_not_be_read_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text(text)
    assert options.load(tmp_path / "notes.json") is None
    assert options.load(tmp_path / "missing.json") is None


def test_notes_of_another_vllm_count_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_version.py").write_text("one")
    monkeypatch.delitem(sys.modules, "vllm", raising=False)  # it would be found before any file
    monkeypatch.syspath_prepend(str(tmp_path))
    found = vllm_internals.parser_digest()
    assert found is not None, (find_spec("vllm"), sys.modules.get("vllm"), sys.path[:2])
    options.write(Options(found, {}, frozenset(), frozenset()), tmp_path / "notes.json")
    assert options.load(tmp_path / "notes.json") is not None
    (package / "_version.py").write_text("two")
    assert options.load(tmp_path / "notes.json") is None
