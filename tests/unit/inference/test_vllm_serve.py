"""How our launcher starts vLLM, with a stand-in for its server."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


def seeds(environment: dict[str, str]) -> list[str]:
    """What one start of the server is given."""
    done = subprocess.run(
        [sys.executable, "-m", "gymtrain_vllm.serve"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    arguments = json.loads(done.stdout.splitlines()[-1])
    return [argument for argument in arguments if argument.startswith("--seed")]


def test_each_start_of_a_server_draws_a_seed_of_its_own(environment: dict[str, str]) -> None:
    first, second = seeds(environment), seeds(environment)
    assert len(first) == len(second) == 1
    assert first != second
    assert 0 <= int(first[0].removeprefix("--seed=")) < 2**32
