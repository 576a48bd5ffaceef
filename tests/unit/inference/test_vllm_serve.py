"""How our launcher starts vLLM, with a stand-in for its server."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.specs import smallest_run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a pod whose vLLM prints its arguments."""
    server = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    for folder in server.relative_to(tmp_path).parents:
        (tmp_path / folder / "__init__.py").touch()
    server.write_text("import json, sys\nprint(json.dumps(sys.argv))\n")
    hosts = {"inference_url": "http://x", "inference_pods_host": "x", "trainer_host": "x"}
    run = {"name": "demo", "namespace": "x", **hosts, "spec": smallest_run()["spec"]}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "scratch").mkdir()
    ours = [ROOT / "inference", ROOT / "api", tmp_path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, ours)),
        "GYMTRAIN_RUN_CONFIG": str(tmp_path / "run.json"),
        "GYMTRAIN_ROOT": str(tmp_path),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }


def with_inference(environment: dict[str, str], **inference: Any) -> None:
    """Sets `spec.inference` of the run."""
    file = Path(environment["GYMTRAIN_RUN_CONFIG"])
    run = json.loads(file.read_text())
    run["spec"]["inference"] = inference
    file.write_text(json.dumps(run))


def printed(environment: dict[str, str]) -> str:
    """What one start of the server says."""
    done = subprocess.run(
        [sys.executable, "-m", "gymtrain_vllm.serve"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def seeds(environment: dict[str, str]) -> list[str]:
    """What one start of the server is given."""
    arguments = json.loads(printed(environment).splitlines()[-1])
    return [argument for argument in arguments if argument.startswith("--seed")]


def test_each_start_of_a_server_draws_a_seed_of_its_own(environment: dict[str, str]) -> None:
    first, second = seeds(environment), seeds(environment)
    assert len(first) == len(second) == 1
    assert first != second
    assert 0 <= int(first[0].removeprefix("--seed=")) < 2**32


def test_the_compile_cache_of_the_run_is_loaded_before_the_server_starts(environment: dict[str, str]) -> None:
    root = Path(environment["GYMTRAIN_ROOT"])
    with_inference(environment, compileCache={"size": "1Gi"})
    missing = printed(environment)
    assert f"compile cache: {root}/compile-cache/" in missing
    name = missing.split(f"{root}/compile-cache/")[1].split()[0]
    (root / "compile-cache").mkdir()
    (root / "notes").mkdir()
    (root / "notes" / "note").write_text("compiled")
    with tarfile.open(root / "compile-cache" / name, "w") as archive:
        archive.add(root / "notes" / "note", "graphs/note")
    shutil.rmtree(root / "scratch")
    (root / "scratch").mkdir()
    assert f"loaded {root}/compile-cache/{name}" in printed(environment)
    assert (root / "scratch" / "vllm-cache" / "torch_compile_cache" / "note").read_text() == "compiled"


def test_a_run_without_a_compile_cache_has_none(environment: dict[str, str]) -> None:
    assert "compile cache" not in printed(environment)
