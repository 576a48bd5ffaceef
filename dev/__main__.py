"""The commands: `dev/run COMMAND`."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dev.cluster.addons import is_up, kubectl
from dev.cluster.down import down, leftovers
from dev.cluster.up import up
from dev.host import processes
from dev.report import DevError, say
from dev.settings import BUILD_DAEMON, DAEMONS, Settings


@contextmanager
def _exclusive(settings: Settings) -> Iterator[None]:
    """One command at a time: two would undo each other's work."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    with (settings.cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another dev command to end …")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cluster_up(settings: Settings, _: argparse.Namespace) -> int:
    with _exclusive(settings):
        up(settings)
    return 0


def _cluster_down(settings: Settings, _: argparse.Namespace) -> int:
    with _exclusive(settings):
        down(settings)
    return 0


def _leftovers(settings: Settings, _: argparse.Namespace) -> int:
    found = leftovers(settings)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


def _kubeconfig(settings: Settings, _: argparse.Namespace) -> int:
    if not settings.kubeconfig.exists():
        raise DevError("there is no cluster", fix="dev/run cluster-up")
    print(settings.kubeconfig)
    return 0


def _status(settings: Settings, _: argparse.Namespace) -> int:
    for name in (*DAEMONS, BUILD_DAEMON):
        identity = processes.recorded(settings, name)
        print(f"{name:24} {f'pid {identity.pid}' if identity else 'not running'}")
    if not settings.kubeconfig.exists():
        print("no cluster")
        return 1
    problem = is_up(settings)
    print(f"cluster                  {problem or 'works'}")
    if not problem:
        print(kubectl(settings, "get", "pods", "--all-namespaces", "--output=wide"), end="")
    return 1 if problem else 0


_COMMANDS: dict[str, tuple[Callable[[Settings, argparse.Namespace], int], str]] = {
    "cluster-up": (_cluster_up, "start the cluster, or do nothing if it works"),
    "cluster-down": (_cluster_down, "remove everything but the cache"),
    "kubeconfig": (_kubeconfig, "print the administrator's kubeconfig's path"),
    "status": (_status, "show the daemons and pods"),
    "leftovers": (_leftovers, "print what of the cluster is on the machine; nothing and status 0 when clean"),
}


def main() -> int:
    """Parse, run, and turn an expected error into a message."""
    parser = argparse.ArgumentParser(prog="dev/run", description="The development cluster.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (function, summary) in _COMMANDS.items():
        commands.add_parser(name, help=summary, description=summary).set_defaults(function=function)
    arguments = parser.parse_args()
    os.umask(0o022)
    try:
        return arguments.function(Settings(), arguments)
    except DevError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `dev/run cluster-down` cleans up", file=sys.stderr)
        return 130


sys.exit(main())
