from collections.abc import Mapping
from pathlib import Path

import pytest

from dev.cluster import extras
from dev.host import processes
from dev.host.processes import Daemon
from dev.report import DevError
from dev.settings import EXTRA_DAEMONS, GPU_DAEMON, Settings
from dev.supply import binaries


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of kubectl, and which programs were started or stopped; the cluster works."""
    noted: list[str] = []
    files = {name: Path("/set") / name for one in extras.EXTRAS for name in (one.program, one.manifests, one.config)}

    def start(_: Settings, daemon: Daemon) -> bool:
        noted.append("start " + " ".join(map(str, daemon.argv)))
        return True

    def ensure(_: Settings, names: list[str]) -> Mapping[str, Path]:
        return files

    def kubectl(_: Settings, *arguments: str, **__: object) -> str:
        noted.append(" ".join(arguments))
        return "condition met" if arguments[0] == "wait" else ""

    monkeypatch.setattr(extras, "is_up", lambda _: "")
    monkeypatch.setattr(extras, "kubectl", kubectl)
    monkeypatch.setattr(binaries, "ensure", ensure)
    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(processes, "stop", lambda _, name: noted.append(f"stop {name}"))
    monkeypatch.setattr(processes, "require", lambda *_: None)
    monkeypatch.setattr(extras, "_silent", lambda _: "")
    return noted


def test_what_is_served_is_installed_before_its_controller_starts(settings: Settings, done: list[str]) -> None:
    extras.add(settings, "agent-sandbox")

    assert [line.split()[0] for line in done] == ["apply", "wait", "start"]
    assert f"--kubeconfig={settings.kubeconfig}" in done[-1]


def test_objects_are_deleted_while_their_controller_runs(settings: Settings, done: list[str]) -> None:
    extras.remove(settings, "agent-sandbox")

    assert [line.split()[0] for line in done] == ["delete", "stop"]


def test_an_addon_can_be_ended_beside_a_cluster_that_is_broken(
    settings: Settings, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "is_up", lambda _: "etcd not running")

    extras.remove(settings, "kwok")
    assert done == ["stop kwok"]

    with pytest.raises(DevError, match="the cluster does not work: etcd not running"):
        extras.add(settings, "kwok")


def test_each_of_them_goes_with_the_cluster() -> None:
    assert {GPU_DAEMON, *(one.program for one in extras.EXTRAS)} == set(EXTRA_DAEMONS)
