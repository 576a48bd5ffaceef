from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.up import up
from dev.report import DevError
from dev.settings import Settings
from dev.supply.sets import SETS


def test_a_cluster_with_another_containerd_is_left_alone(settings: Settings) -> None:
    settings.state.mkdir(parents=True)
    (settings.state / "complete").touch()
    with pytest.raises(DevError, match="Debian's containerd") as raised:
        up(replace(settings, wants_containerd_2=True))
    assert "cluster-down" in raised.value.fix


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> list[str]:
    """What was done, in order: nothing of this machine is touched."""
    noted: list[str] = []

    def note(what: str) -> Callable[..., Any]:
        return lambda *_, **__: noted.append(what)

    def ensure(
        _: Settings, names: tuple[str, ...] = (), when_ready: Mapping[str, Callable[[], None]] | None = None
    ) -> Mapping[str, Path]:
        for one in [binaries for binaries in SETS if (binaries.name in names if names else not binaries.lazy)]:
            noted.append(f"built {one.name}")
            if when_ready and one.name in when_ready:
                when_ready[one.name]()
        return {}

    def create(*_: object) -> None:
        noted.append("cluster")
        settings.state.mkdir(parents=True, exist_ok=True)
        (settings.state / "complete").touch()

    stand_ins = {
        "packages.ensure": note("packages"),
        "rootfs.ensure": note("base"),
        "binaries.ensure": ensure,
        "leftovers": lambda _: [],
        "network.raise_up": note("network"),
        "cgroups.create": note("cgroups"),
        "containerd.forget_sandbox_files": note("forget files"),
        "containerd.start": note("containerd"),
        "containerd.forget_containers": note("forget containers"),
        "containerd.load_base": note("load base"),
        "buildkit.start": note("buildkitd"),
        "_create": create,
        "addons.is_up": lambda _: "",
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"dev.cluster.up.{name}", stand_in)
    return noted


def test_images_of_a_new_cluster_are_built_while_kubernetes_is_compiled(settings: Settings, done: list[str]) -> None:
    up(settings, lambda: done.append("images"))
    assert done.index("base") < done.index("load base") < done.index("buildkitd") < done.index("images")
    assert done.index("forget files") < done.index("containerd") < done.index("forget containers")
    assert done.index("buildkitd") < done.index("built kubernetes") < done.index("cluster")


def test_a_cluster_without_images_waits_for_all_programs_before_it_touches_the_machine(
    settings: Settings, done: list[str]
) -> None:
    up(settings)
    assert done.index(f"built {[one for one in SETS if not one.lazy][-1].name}") < done.index("network")
    assert done[-1] == "cluster"
    assert "buildkitd" not in done


def test_images_are_built_on_the_cluster_that_runs(settings: Settings, done: list[str]) -> None:
    settings.state.mkdir(parents=True)
    (settings.state / "complete").touch()
    up(settings, lambda: done.append("images"))
    assert done == ["buildkitd", "images"]


def test_images_that_can_not_be_built_leave_the_cluster_and_say_so(settings: Settings, done: list[str]) -> None:
    def fail() -> None:
        raise DevError("an image is broken")

    with pytest.raises(DevError, match="an image is broken"):
        up(settings, fail)
    assert done[-1] == "cluster"
