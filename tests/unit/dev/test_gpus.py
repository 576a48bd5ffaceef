"""GPUs of the development cluster's node: what the device plugin is told, and what is said where it can't work."""

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from dev.cluster import gpus
from dev.host import processes
from dev.host.processes import Daemon
from dev.report import DevError
from dev.settings import Settings
from dev.supply import binaries


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(gpus, "is_up", lambda _: "")
    monkeypatch.setattr(binaries, "ensure", lambda *_: {name: tmp_path / name for name in _PROGRAMS})
    made = Settings(cache=tmp_path / "cache", state=tmp_path / "state")
    made.state.mkdir()
    made.containerd_2.touch()
    return made


_PROGRAMS = ("nvidia-device-plugin", "nvidia-cdi-hook")


class _Nvml:
    def __init__(self, gpus: int) -> None:
        self._gpus = gpus

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self._gpus
        return 0


def _driver(monkeypatch: pytest.MonkeyPatch, *, there: bool = True, gpus: int = 2) -> None:
    def load(name: str) -> _Nvml:
        assert name == "libnvidia-ml.so.1"
        if not there:
            raise OSError("no such file")
        return _Nvml(gpus)

    monkeypatch.setattr(ctypes, "CDLL", load)


def _start(monkeypatch: pytest.MonkeyPatch, allocatable: int) -> list[Daemon]:
    started: list[Daemon] = []

    def start(_: Settings, daemon: Daemon) -> bool:
        started.append(daemon)
        return True

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(processes, "require", lambda *_: None)
    node = {"status": {"allocatable": {"nvidia.com/gpu": str(allocatable)}}}
    monkeypatch.setattr(gpus, "kubectl", lambda *_, **__: json.dumps(node))
    return started


@pytest.mark.parametrize(("slices", "sharing"), [(1, {}), (2, {"resources": [{"name": gpus.RESOURCE, "replicas": 2}]})])
def test_the_plugin_hands_gpus_out_by_cdi_and_in_turns_only_when_asked(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, slices: int, sharing: dict[str, object]
) -> None:
    _driver(monkeypatch)
    started = _start(monkeypatch, 2 * slices)

    gpus.add(settings, slices)

    (daemon,) = started
    told = dict(str(word).removeprefix("--").split("=", 1) for word in daemon.argv[1:])
    config = json.loads(Path(told["config-file"]).read_text())
    assert config["flags"]["plugin"]["deviceListStrategy"] == ["cdi-cri"]
    assert config["sharing"].get("timeSlicing", {}) == sharing
    assert told["nvidia-cdi-hook-path"].endswith("nvidia-cdi-hook")


def test_another_number_of_slices_starts_the_plugin_anew(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(processes, "stop", lambda _, name: stopped.append(name))
    _driver(monkeypatch)
    _start(monkeypatch, 2)
    gpus.add(settings, 1)
    stopped.clear()
    gpus.add(settings, 1)
    assert not stopped
    _start(monkeypatch, 16)
    gpus.add(settings, 8)
    assert stopped == ["nvidia-device-plugin"]


def test_a_driver_without_a_gpu_is_said(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch, gpus=0)
    with pytest.raises(DevError, match="finds no GPU"):
        gpus.add(settings, 1)


def test_a_machine_without_the_driver_is_told_so(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch, there=False)
    with pytest.raises(DevError, match="no NVIDIA driver"):
        gpus.add(settings, 1)


def test_debians_containerd_knows_no_cdi(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch)
    settings.containerd_2.unlink()
    with pytest.raises(DevError, match="CDI needs containerd 2"):
        gpus.add(settings, 1)
