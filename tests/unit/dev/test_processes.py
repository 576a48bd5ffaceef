import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dev.host import processes
from dev.host.processes import Daemon, identify
from dev.report import DevError
from dev.settings import Settings

SLEEPER = Daemon("sleeper", ["sleep", "600"])


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    made = Settings(cache=tmp_path / "cache", state=tmp_path / "state")
    yield made
    processes.stop(made, SLEEPER.name, grace=0.1)


def test_a_running_daemon_is_not_started_twice(settings: Settings) -> None:
    assert processes.start(settings, SLEEPER)
    assert not processes.start(settings, SLEEPER)


def test_a_stopped_daemon_is_gone_with_its_pid_file(settings: Settings) -> None:
    processes.start(settings, SLEEPER)
    identity = processes.recorded(settings, SLEEPER.name)
    assert identity is not None

    processes.stop(settings, SLEEPER.name)

    assert identify(identity.pid) is None
    assert not list(settings.pids.iterdir())


@pytest.mark.parametrize("change", [{"started": 1}, {"program": "/usr/bin/other"}])
def test_a_process_that_only_got_an_old_pid_is_left_alone(settings: Settings, change: dict[str, object]) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        identity = identify(stranger.pid)
        assert identity is not None
        settings.pids.mkdir(parents=True)
        record = asdict(replace(identity, **change))  # type: ignore[arg-type]
        (settings.pids / "sleeper.json").write_text(json.dumps(record))

        processes.stop(settings, SLEEPER.name)

        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "started": 0, "program": ""}'])
def test_a_half_written_pid_file_means_not_running(settings: Settings, content: str) -> None:
    settings.pids.mkdir(parents=True)
    (settings.pids / "sleeper.json").write_text(content)

    assert processes.dead(settings, ["sleeper"]) == ["sleeper"]


def test_a_daemon_that_died_is_told_with_the_end_of_its_log(settings: Settings) -> None:
    settings.logs.mkdir(parents=True)
    (settings.logs / "sleeper.log").write_text("what went wrong\n")

    with pytest.raises(DevError) as caught:
        processes.require(settings, ["sleeper"])

    assert "what went wrong" in caught.value.render()


def test_processes_are_found_by_program_and_a_path_of_ours(settings: Settings) -> None:
    path = settings.state / "unique"
    path.mkdir(parents=True)
    ours = subprocess.Popen(["tail", "-f", path / "config"], stderr=subprocess.DEVNULL)
    (path / "config").touch()
    try:
        assert all(found.pid == ours.pid for found in processes.mentioning(str(settings.state), ["tail"]))
        assert not processes.mentioning(str(settings.state), ["kubelet"])
    finally:
        ours.kill()
        ours.wait()
