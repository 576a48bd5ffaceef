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

from gymtrain_vllm.server_exit import ExitCode
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


def in_a_group(environment: dict[str, str], index: int) -> dict[str, str]:
    """The same in a pod of a server on two nodes."""
    with_inference(environment, nodes=2)
    return environment | {
        "LWS_WORKER_INDEX": str(index),
        "LWS_LEADER_ADDRESS": "localhost",
        "VLLM_HOST_IP": "127.0.0.1",
    }


def with_workers(environment: dict[str, str]) -> None:
    """Adds the parts of vLLM that run workers, which print their arguments."""
    entrypoints = Path(environment["GYMTRAIN_ROOT"]) / "vllm" / "entrypoints"
    for folder in ("cli", "launchers", "../utils"):
        (entrypoints / folder).mkdir()
        (entrypoints / folder / "__init__.py").touch()
    (entrypoints / "../utils/argparse_utils.py").write_text(
        "from argparse import ArgumentParser as FlexibleArgumentParser\n"
    )
    (entrypoints / "launchers/cli_args.py").write_text(
        """def make_arg_parser(parser):
    for name in ("seed", "node-rank", "master-addr"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--headless", action="store_true")
    parser.parse_args = lambda given: parser.parse_known_args(given)[0]
    return parser
"""
    )
    (entrypoints / "cli/serve.py").write_text(
        """import json
class ServeSubcommand:
    @staticmethod
    def cmd(args):
        print(json.dumps(vars(args)), flush=True)
"""
    )


def test_the_pods_of_a_server_start_with_one_seed(environment: dict[str, str]) -> None:
    with_workers(environment)
    launcher = [sys.executable, "-m", "gymtrain_vllm.serve"]
    server = Path(environment["GYMTRAIN_ROOT"]) / "vllm/entrypoints/openai/api_server.py"
    server.write_text("import json, sys\nprint(json.dumps(sys.argv), flush=True)\nsys.stdin.read()\n")
    pipe = subprocess.PIPE
    worker = subprocess.Popen(launcher, env=in_a_group(environment, 1), stdout=pipe, text=True)
    leader = subprocess.Popen(launcher, env=in_a_group(environment, 0), stdin=pipe, stdout=pipe, text=True)
    try:
        said = worker.communicate(timeout=60)[0]
        of_leader = leader.communicate("", timeout=60)[0]
    finally:
        worker.kill()
        leader.kill()
    started = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert (started["headless"], started["node_rank"], started["master_addr"]) == (True, "1", "127.0.0.1")
    assert f"--seed={started['seed']}" in json.loads(of_leader.splitlines()[-1])
    assert worker.returncode == ExitCode.WORKER_GONE


def test_a_pod_that_does_not_know_its_place_says_what_is_missing(environment: dict[str, str]) -> None:
    with_inference(environment, nodes=2)
    command = [sys.executable, "-m", "gymtrain_vllm.serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "LWS_LEADER_ADDRESS" in done.stderr
