"""Chains beside each other: which there are, and that each has a network of its own. Stand-ins for the chains
themselves, which need GPUs."""

import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.gpu.chain import chains, curves, namespace
from benchmarks.gpu.chain.chains import TRAINER_LOG, Chain, keep_logs
from benchmarks.gpu.chain.records import read
from gymtrain_api.spec import CorrectionMode
from gymtrain_vllm import arguments

SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 8000))
while True:
    connection, _ = server.accept()
    connection.sendall(sys.argv[1].encode())
    connection.close()
"""
PORTS = {"inference": 1, "agent": 2, "trainer": 3, "gateway": 4}

own_networks = pytest.mark.skipif(namespace.refusal() is not None, reason="needs root and network namespaces")


def grid(*given: str) -> list[Chain]:
    return curves.grid(curves._options().parse_args(["--model", "m", *given]))


def chain(seed: int) -> Chain:
    return Chain("ours", Path("m"), seed=seed)


def started(name: str) -> subprocess.Popen[bytes]:
    """A server on a port that each network has once."""
    return subprocess.Popen([sys.executable, "-c", SERVER, name])


def said() -> str:
    """What the server in the calling thread's network says."""
    import socket

    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", 8000), timeout=5) as connection:
                return connection.recv(100).decode()
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("no server")


def trained(folder: Path, steps: int) -> None:
    lines = [f'{{"event": "step", "step": {step}, "reward": 0.5}}' for step in range(1, steps + 1)]
    (folder / TRAINER_LOG).write_text("\n".join(lines))


def test_by_default_each_staleness_has_a_chain_with_and_without_correction() -> None:
    assert [(one.side, one.staleness, one.correction) for one in grid()] == [
        ("ours", staleness, mode) for mode in ("None", "TokenTruncate") for staleness in (0, 1, 4, 16)
    ]


def test_trl_has_one_chain_a_seed_with_a_staleness_of_its_own() -> None:
    found = grid("--sides", "ours", "trl", "--seeds", "1", "2", "--staleness", "0", "16", "--correction", "None")
    assert [(one.side, one.seed, one.staleness) for one in found] == [
        ("ours", 1, 0),
        ("ours", 1, 16),
        ("trl", 1, 4),
        ("ours", 2, 0),
        ("ours", 2, 16),
        ("trl", 2, 4),
    ]


def test_each_side_has_rollouts_in_flight_of_its_own() -> None:
    found = grid("--sides", "ours", "trl", "--staleness", "4", "--correction", "None", "--in-flight", "64")
    assert [one.in_flight for one in found] == [64, 128]


def test_a_combination_that_is_named_twice_runs_once() -> None:
    assert len(grid("--staleness", "4", "4", "--seeds", "1", "1", "--correction", "None")) == 1


def test_chains_have_names_of_their_own() -> None:
    found = grid("--sides", "ours", "trl", "--seeds", "1", "2")
    assert len({one.name for one in found}) == len(found) == 18


def test_more_chains_than_fit_on_the_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["curves", "--model", "m", "--memory", "0.2"])
    with pytest.raises(SystemExit, match="8 chains"):
        curves.main()


@pytest.mark.parametrize("mode", get_args(CorrectionMode.__value__))
def test_a_chain_of_ours_is_a_run_with_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    monkeypatch.setattr(chains, "rows", lambda: [{"prompt": [{"role": "user", "content": "1 + 1"}], "entry": {}}])
    one = Chain("ours", tmp_path, seed=3, staleness=16, correction=mode, memory=0.08, cache_bytes=2**30)
    spec = chains._prepare(tmp_path, one, PORTS).spec
    assert (spec.rollout.max_staleness, spec.rollout.correction.mode, spec.trainer.config["seed"]) == (16, mode, 3)
    command = arguments.build(spec, tmp_path, 8000)
    assert {"--gpu-memory-utilization=0.08", f"--kv-cache-memory-bytes={2**30}"} <= set(command)


def test_servers_and_ranks_have_gpus_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "rows", lambda: [{"prompt": [{"role": "user", "content": "1 + 1"}], "entry": {}}])
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    one = Chain("ours", tmp_path, replicas=2, tensor_parallel=2, ranks=2)
    assert one.vllm_gpus == ["0,1", "2,3"]
    assert one.trainer_gpus == "4,5"
    spec = chains._prepare(tmp_path, one, PORTS).spec
    assert (spec.inference.replicas, spec.inference.gpus, spec.trainer.gpus) == (2, 2, 2)


def test_logs_of_all_chains_are_in_one_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vllm.log").write_text(name)
        keep_logs(tmp_path / name, tmp_path / "logs.zip")
    with zipfile.ZipFile(tmp_path / "logs.zip") as kept:
        assert {name: kept.read(name) for name in kept.namelist()} == {"one/vllm.log": b"one", "two/vllm.log": b"two"}


@own_networks
def test_chains_serve_on_the_same_port_beside_each_other(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=30)
    heard = {}

    def run(one: Chain, folder: Path) -> dict[str, Any]:
        server = started(one.name)
        said()
        both.wait()  # both servers are up
        heard[one.name] = said()
        both.wait()
        server.kill()
        server.wait()
        trained(folder, one.seed)
        return {}

    (tmp_path / "work").mkdir()
    found = curves.record([chain(1), chain(2)], tmp_path / "work", tmp_path, stagger=0, run=run)
    assert heard == {one.name: one.name for one in (chain(1), chain(2))}
    assert [(one.seed, len(one.steps)) for one in found] == [(1, 1), (2, 2)]


@own_networks
def test_a_chain_that_fails_counts_with_its_steps_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(one: Chain, folder: Path) -> dict[str, Any]:
        trained(folder, 3)
        if one.seed == 1:
            raise RuntimeError("trainer.log: did not end in time")
        return {"rollouts_per_second": 1.0}

    found = curves.record([chain(1), chain(2)], tmp_path / "work", tmp_path, stagger=0.3, run=run)
    assert [len(one.steps) for one in found] == [3, 3]
    assert sorted(read(tmp_path / "curves.csv"), key=lambda one: one.seed) == found
    assert '"error": "RuntimeError: trainer.log: did not end in time"' in capsys.readouterr().out


@own_networks
def test_a_chain_without_a_step_has_no_curve_but_its_logs(tmp_path: Path) -> None:
    def run(one: Chain, folder: Path) -> dict[str, Any]:
        (folder / "vllm.log").write_text("no memory")
        raise RuntimeError("vLLM did not come up")

    assert curves.record([chain(1)], tmp_path / "work", tmp_path, stagger=0, run=run) == []
    with zipfile.ZipFile(tmp_path / "logs.zip") as kept:
        assert kept.namelist() == [f"{chain(1).name}/vllm.log"]


@own_networks
def test_nothing_of_a_chain_is_left_when_it_has_failed(tmp_path: Path) -> None:
    left = []

    def run(one: Chain, folder: Path) -> dict[str, Any]:
        left.append(started("left"))
        said()
        raise RuntimeError("its server was killed")

    curves.record([chain(1)], tmp_path / "work", tmp_path, stagger=0, run=run)
    assert left[0].wait(10) == -9


@own_networks
def test_a_name_has_several_addresses_for_what_is_started_after(tmp_path: Path) -> None:
    addresses, found = ["127.0.0.1", "127.0.0.2"], list[str]()
    script = "import socket; print(sorted({one[4][0] for one in socket.getaddrinfo('servers', 80)}))"

    def look() -> None:
        namespace.add_name("servers", addresses, tmp_path / "hosts")
        found.append(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [str(addresses)]
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode != 0, "not for others"


@own_networks
def test_this_process_stays_in_its_network() -> None:
    before = os.readlink("/proc/self/ns/net")
    assert namespace.refusal() is None
    assert os.readlink("/proc/thread-self/ns/net") == before


def test_processes_of_the_machines_own_network_are_not_ended() -> None:
    with pytest.raises(RuntimeError, match="no network of its own"):
        namespace.end_processes()
