"""Controllers that tests and benchmarks add to a cluster that runs: agent-sandbox's, and KWOK with its fake nodes.

They run beside the API server with the administrator's rights, so they need no image and no roles.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.cluster.addons import is_up, kubectl
from dev.host import processes
from dev.host.processes import Daemon
from dev.report import DevError, say, step, wait_until
from dev.settings import Settings
from dev.supply import binaries

FAKE_NODE = "kwok.x-k8s.io/node=fake"
FAKE_NODE_LABEL = "type=kwok"
FAKE_PODS = "127.1.0.0/16"
"""Addresses of pods on fake nodes: of this machine, so that one server can answer for all of them."""


@dataclass(frozen=True, slots=True)
class Extra:
    """One of them."""

    name: str
    """Of the set of programs, too."""
    program: str
    arguments: Sequence[str]
    health: str
    """Answers once it works."""
    manifests: str = ""
    """A document of the set that is applied."""
    config: str = ""
    """A document of the set that the program reads."""
    objects: Sequence[str] = ()
    """What to delete with it, as arguments of `kubectl delete`."""


EXTRAS = (
    Extra(
        "agent-sandbox",
        "agent-sandbox-controller",
        [
            "--extensions",
            "--leader-elect=false",
            "--metrics-bind-address=127.0.0.1:9480",
            "--health-probe-bind-address=127.0.0.1:9481",
        ],
        "http://127.0.0.1:9481/readyz",
        manifests="agent-sandbox.yaml",
    ),
    Extra(
        "kwok",
        "kwok",
        [
            f"--manage-nodes-with-annotation-selector={FAKE_NODE}",
            "--node-lease-duration-seconds=40",
            f"--cidr={FAKE_PODS}",
            "--server-address=127.0.0.1:9482",
        ],
        "http://127.0.0.1:9482/healthz",
        config="kwok-stages.yaml",
        objects=["nodes", f"--selector={FAKE_NODE_LABEL}"],
    ),
)


def add(settings: Settings, name: str) -> None:
    """Build it if need be, install what it serves, start it; nothing where it runs."""
    extra = _named(name)
    if problem := is_up(settings):
        raise DevError(f"the cluster does not work: {problem}", fix="dev/run cluster-up")
    files = binaries.ensure(settings, [extra.name])
    if extra.manifests:
        kubectl(settings, "apply", "--server-side", "--force-conflicts", "-f", str(files[extra.manifests]))
        wait = ("wait", "--for=condition=Established", "-f", str(files[extra.manifests]))

        def missing() -> str:
            # kubectl fails where an object has no conditions at all yet.
            return "" if kubectl(settings, *wait, check=False) else "not established"

        wait_until("its CRDs", missing, deadline=60, fix="see `kubectl get crd`")
    daemon = _daemon(settings, extra, files[extra.program], files.get(extra.config))
    if processes.start(settings, daemon):
        say(f"starting {extra.program}")

    def problem_now() -> str:
        processes.require(settings, [daemon.name])
        return _silent(extra.health)

    wait_until(extra.program, problem_now, deadline=60, log=daemon.log(settings), fix="see the log")


def remove(settings: Settings, name: str) -> None:
    """Delete what it serves while it can still see to it, then end it."""
    extra = _named(name)
    if not is_up(settings):
        with step(f"removing the objects of {extra.name}"):
            for arguments in _deletions(settings, extra):
                kubectl(settings, "delete", *arguments, "--ignore-not-found", "--wait", "--timeout=180s", deadline=200)
    processes.stop(settings, extra.program)


def _named(name: str) -> Extra:
    for extra in EXTRAS:
        if extra.name == name:
            return extra
    raise DevError(f"no such addon: {name}", fix=f"one of: {', '.join(one.name for one in EXTRAS)}")


def _daemon(settings: Settings, extra: Extra, program: Path, config: Path | None) -> Daemon:
    given = [] if config is None else [f"--config={config}"]
    return Daemon(extra.program, [program, f"--kubeconfig={settings.kubeconfig}", *extra.arguments, *given])


def _deletions(settings: Settings, extra: Extra) -> list[list[str]]:
    found = [list(extra.objects)] if extra.objects else []
    if extra.manifests:
        found.append(["-f", str(binaries.ensure(settings, [extra.name])[extra.manifests])])
    return found


def _silent(url: str) -> str:
    """Empty when the address answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=3):
            return ""
    except OSError as error:
        return f"{url}: {error}"
