"""The report and the rollouts of a run, by the program that a pod would run."""

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from rich.console import Console

from gymtrain_cli.rollouts import OUTCOMES, shown
from gymtrain_client import run_folder
from gymtrain_client.client import Run
from gymtrain_client.errors import ReportError
from gymtrain_report.hops import HOPS
from tests.unit.cli.fake_cluster import FakeCluster, pod
from tests.unit.cli.test_fetch import RUN
from tests.unit.report.report_folders import TOOL, conversation, made, rollout


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    found = FakeCluster(made(tmp_path / "volume"))
    found.runs["r"] = RUN
    found.found_pods = [pod("r-trainer-1-0", "trainer")]
    return found


@pytest.fixture
def run(cluster: FakeCluster) -> Run:
    return Run(cluster, "r")  # type: ignore[arg-type]


def test_the_report_is_written_with_the_name_of_the_run(run: Run, tmp_path: Path) -> None:
    seen: list[int] = []
    file, said = run.report(tmp_path / "out" / "r.html", progress=seen.append)
    assert "<title>r · gymtrain</title>" in file.read_text()
    assert said.endswith("All 27 recorded rollouts.")
    assert seen[-1] == file.stat().st_size
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["r.html"], "nothing half done is left"


def test_beside_a_trainer_it_takes_little(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    run.report(tmp_path / "r.html")
    cluster.found_pods = []  # the run has ended: a pod of its own
    run.report(tmp_path / "r.html")
    first, second = cluster.commands
    assert first[:3] == second[:3] == ["nice", "-n", "19"]
    assert "--memory-mib" in first
    assert "--memory-mib" not in second
    assert len(cluster.deleted_pods) == 1


def test_a_report_that_breaks_off_leaves_the_last_one(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    file, _ = run.report(tmp_path / "r.html")
    before = file.read_text()
    (cluster.volume / "rollouts" / "step-00000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(ReportError, match=r"step-00000001\.parquet can't be read"):
        run.report(file)
    assert file.read_text() == before
    assert list(tmp_path.glob("*.html*")) == [file]


def test_before_the_first_step_there_is_nothing_to_report(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    for name in ("rewards.csv", "evaluations.csv"):
        (cluster.volume / name).unlink()
    with pytest.raises(ReportError, match="no step of the run has ended yet"):
        run.report(tmp_path / "r.html")


def test_a_trainer_of_an_older_release_is_named(run: Run, cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.instead = ["python3", "-m", "gymtrain_report_of_nobody"]
    cluster.damage_said = lambda said: said.replace(b"gymtrain_report_of_nobody", b"gymtrain_report")
    with pytest.raises(ReportError, match="of a release without reports"):
        run.report(tmp_path / "r.html")


def test_rollouts_come_by_filter(run: Run) -> None:
    assert len(list(run.rollouts())) == 27
    assert [one["step"] for one in run.rollouts(outcome="dropped", agent="booker", search="rooms")] == [1, 2, 3, 4]
    assert len(list(run.rollouts(step=2, limit=3))) == 3


def test_a_search_is_one_argument_whatever_is_in_it(run: Run, cluster: FakeCluster) -> None:
    assert list(run.rollouts(search='"; rm -rf / # --limit=1')) == []
    assert '--search="; rm -rf / # --limit=1' in cluster.commands[-1]


class Live:
    """`Cluster.exec` and `connect` on this machine, as long as the connection is there."""

    def __init__(self, volume: Path) -> None:
        self.volume = volume
        self.processes: list[subprocess.Popen[bytes]] = []

    def exec(self, pod: str, container: str, command: Sequence[str], *, stdin: bool = False) -> Any:
        assert stdin, "the server ends with it"
        words = [str(self.volume) if part == run_folder.FOLDER else part for part in command[3:]]
        self.processes.append(
            subprocess.Popen(
                [sys.executable, *words[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
        return Connection(self.processes[-1])

    def connect(self, pod: str, port: int) -> Any:
        import socket

        return Away(socket.create_connection(("127.0.0.1", port), 10))


class Away:
    """As the official client has a connection to a pod: much of a socket, but no context manager."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class Connection:
    """WSClient of a process that goes on."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def is_open(self) -> bool:
        return self._process.poll() is None

    def update(self, timeout: float) -> None:
        """What has come is read below."""

    def read_stdout(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read() or b""

    def read_stderr(self, timeout: float) -> bytes:
        return b""

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


def test_live_is_served_here_until_its_end_and_leaves_no_process(run: Run, cluster: FakeCluster) -> None:
    live, end, addresses = Live(cluster.volume), threading.Event(), list[str]()
    cluster.exec = live.exec  # type: ignore[method-assign]
    cluster.connect = live.connect  # type: ignore[attr-defined]
    known = threading.Event()

    def ready(address: str) -> None:
        addresses.append(address)
        known.set()

    serving = threading.Thread(target=run.serve_report, args=(0, ready, end))
    serving.start()
    assert known.wait(30)
    with urlopen(f"{addresses[0]}/", timeout=20) as page:
        assert b"<title>r " in page.read()
    with urlopen(f"{addresses[0]}/", timeout=20) as page:  # a connection of its own each time
        assert page.status == 200
    end.set()
    serving.join(30)
    assert not serving.is_alive()
    assert live.processes[0].wait(20) == 0


def test_a_port_that_is_taken_is_named(run: Run) -> None:
    import socket

    other = socket.create_server(("127.0.0.1", 0))
    with other, pytest.raises(ReportError, match=r"port \d+ of this machine can't be used"):
        run.serve_report(other.getsockname()[1])


def test_a_rollout_reads_well_in_a_terminal() -> None:
    told = conversation("Book a room", "Done", TOOL, {"type": "function_call_output", "output": "booked"})
    one = rollout(3, 7, 0, conversation=json.loads(told), error="not within 30 s", reason="timeout")
    console = Console(file=io.StringIO(), width=200)
    console.print(shown(one))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    for text in (
        "step 3 · trained · adder · group 7",
        "model calls 1 · of these waiting for vLLM 0.125 · in vLLM 0.75",
        "reward 0",
        "not within 30 s",
        "user: Book a room",
        'tool: book_room({"floor": 3})',
        "tool: → booked",
        "assistant: Done",
    ):
        assert text in said


def test_outcomes_are_those_of_the_records() -> None:
    page = (Path(__file__).parents[3] / "docs" / "records.md").read_text()
    assert all(f"`{outcome}`" in page for outcome in OUTCOMES)


def test_a_rollout_of_which_no_hop_is_known_has_no_line_of_them() -> None:
    one = rollout(3, 7, 0, conversation={}) | dict.fromkeys(HOPS)
    console = Console(file=io.StringIO(), width=200)
    console.print(shown(one))
    assert isinstance(console.file, io.StringIO)
    assert "seconds:" not in console.file.getvalue()
