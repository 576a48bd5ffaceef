"""Bringing the cluster up, from whatever state the machine is in."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from dev.cluster import addons, containerd, control_plane, node, pki
from dev.cluster.control_plane import Ports
from dev.cluster.down import leftovers, remove
from dev.host import cgroups, network, packages, processes
from dev.images import buildkit
from dev.report import DevError, say, step
from dev.settings import Settings
from dev.supply import binaries, rootfs
from dev.supply.sets import CONTAINER_RUNTIME, IMAGE_BUILDER

_REPAIR_SECONDS = 180
"""Long: what does not answer in time on an overloaded machine is not worth losing its objects for."""


def up(settings: Settings, build_images: Callable[[], None] | None = None) -> None:
    """A cluster that works: the one that runs, else that one repaired, else a new one.

    `build_images` is called with buildkitd running: for a new cluster as soon as BuildKit and the base image are there,
    beside the compiler, which waits for the network no more than images wait for the processors.
    """
    if _complete(settings).exists() and settings.wants_containerd_2 and not settings.containerd_2.exists():
        raise DevError("the cluster has Debian's containerd", fix="dev/run cluster-down, then again")
    if _complete(settings).exists() and not addons.is_up(settings):
        say("the cluster is up already")
    elif build_images is not None and not _complete(settings).exists():
        _create_beside(settings, build_images)
        return
    else:
        _mend_or_create(settings)
    if build_images is not None:
        buildkit.start(settings)
        build_images()


def _mend_or_create(settings: Settings) -> None:
    _ensure_packages(settings)
    with ThreadPoolExecutor() as pool:  # debootstrap waits for the network, the compiler for the processors
        base = pool.submit(rootfs.ensure, settings)
        programs = binaries.ensure(settings)
        _ensure_runtime(settings)
        base.result()
    if _complete(settings).exists() and _repair(settings, programs):
        return
    _prepare(settings)
    _create(settings, programs)


def _create_beside(settings: Settings, build_images: Callable[[], None]) -> None:
    """A new cluster, and images built meanwhile: they need containerd and BuildKit, and no Kubernetes."""
    _ensure_packages(settings)
    with ThreadPoolExecutor() as pool:
        base = pool.submit(rootfs.ensure, settings)
        images: list[Future[None]] = []

        def start_images() -> None:
            _ensure_runtime(settings)
            base.result()
            _prepare(settings)
            with step("starting containerd and BuildKit"):
                cgroups.create()
                containerd.start(settings)
                containerd.forget_containers(settings)
                containerd.load_base(settings)
                buildkit.start(settings)
            images.append(pool.submit(build_images))

        programs = binaries.ensure(settings, when_ready={IMAGE_BUILDER: start_images})
        _create(settings, programs)
        for build in images:
            build.result()


def _ensure_packages(settings: Settings) -> None:
    builds_runc = settings.wants_containerd_2 and bool(binaries.lacking(settings, CONTAINER_RUNTIME))
    packages.ensure(settings, makes_base=not rootfs.archive(settings).exists(), builds_runc=builds_runc)


def _ensure_runtime(settings: Settings) -> None:
    if settings.wants_containerd_2:
        binaries.ensure(settings, CONTAINER_RUNTIME)


def _complete(settings: Settings) -> Path:
    """A marker: this state holds a cluster that once worked."""
    return settings.state / "complete"


def _repair(settings: Settings, programs: dict[str, Path]) -> bool:
    """Start what has died, and see whether the cluster recovers: its objects are worth the attempt."""
    say(f"a cluster exists but does not work ({addons.is_up(settings)}): repairing it")
    try:
        _start(settings, programs, control_plane.saved_ports(settings))
    except (DevError, OSError, ValueError, TypeError) as error:
        say(f"that failed: {error}")
        return False
    end = time.monotonic() + _REPAIR_SECONDS
    while (problem := addons.is_up(settings)) and time.monotonic() < end:
        time.sleep(1)
    say(f"repair failed ({problem}): starting over" if problem else "repaired")
    return not problem


def _prepare(settings: Settings) -> None:
    """Nothing of an earlier cluster, and the folders and the network of a new one: before its first process."""
    if found := leftovers(settings):
        with step(f"removing what an earlier cluster left ({len(found)} things, such as {found[0]})"):
            remove(settings)
    for folder in (settings.state, settings.run, settings.logs, settings.pids):
        folder.mkdir(parents=True, exist_ok=True)
    settings.state.chmod(0o755)
    if settings.wants_containerd_2:
        settings.containerd_2.touch()
    network.raise_up(settings)
    containerd.forget_sandbox_files(settings)


def _create(settings: Settings, programs: dict[str, Path]) -> None:
    ports = control_plane.choose_ports()
    with step("making certificates"):
        pki.create(settings)
        pki.write_kubeconfigs(settings, ports.server)
        ports.save(settings)
    # Containers of an earlier cluster are forgotten before anything is built here: a build has containers, too.
    _start(settings, programs, ports, fresh=bool(processes.dead(settings, ["containerd"])))
    with step("waiting for node, DNS and storage"):
        addons.wait_ready(settings)
    _complete(settings).touch()
    say(f"the cluster is up: {ports.server}")


def _start(settings: Settings, programs: dict[str, Path], ports: Ports, *, fresh: bool = False) -> None:
    network.raise_up(settings)
    with step("starting containerd and importing the cluster's images"):
        containerd.start(settings)
        if fresh:
            containerd.forget_containers(settings)
        containerd.load_images(settings, programs)
    with step("starting the control plane"):
        control_plane.start(settings, programs, ports)
    with step("starting the node"):
        node.start(settings, programs, ports)
        addons.apply(settings)
