"""The commands: `dev/run COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from dev import go_checks
from dev.cluster import containerd, extras, gpus
from dev.cluster.addons import is_up, kubectl
from dev.cluster.down import leftovers
from dev.host import processes
from dev.images.dockerfiles import needed
from dev.lock import exclusive
from dev.providers import choose
from dev.providers.local import Local
from dev.report import DevError, say, step
from dev.settings import BUILD_DAEMON, DAEMONS, EXTRA_DAEMONS, Settings
from dev.supply import binaries


def _cluster_up(settings: Settings, arguments: argparse.Namespace) -> int:
    provider = choose(settings)
    if arguments.images_for and isinstance(provider, Local) and not _published():
        provider.up(needed(arguments.images_for))
        return 0
    provider.up()
    return _images(settings, arguments) if arguments.images_for else 0


def _cluster_down(settings: Settings, arguments: argparse.Namespace) -> int:
    if arguments.check:
        return _leftovers(settings, arguments)
    choose(settings).down()
    return 0


def _images(settings: Settings, arguments: argparse.Namespace) -> int:
    if registry := _published():
        say(f"IMAGE_REGISTRY is set: the nodes pull {registry}gymtrain/NAME, and nothing is built here")
    else:
        choose(settings).images(needed(arguments.images_for) if arguments.images_for else arguments.names)
    return 0


def _published() -> str:
    """Where the cluster gets the images that the user has pushed; empty where they are built here."""
    return os.environ.get("IMAGE_REGISTRY", "")


def _addon(settings: Settings, arguments: argparse.Namespace) -> int:
    if not isinstance(choose(settings), Local):
        raise DevError("addons belong to the cluster that dev/ starts", fix="unset KUBECONFIG and CONTEXT")
    with exclusive(settings):
        (extras.remove if arguments.remove else extras.add)(settings, arguments.name)
    return 0


def _gpus(settings: Settings, arguments: argparse.Namespace) -> int:
    with exclusive(settings):
        gpus.add(settings, arguments.slices)
    return 0


def _load(settings: Settings, arguments: argparse.Namespace) -> int:
    with exclusive(settings), step(f"loading {arguments.archive}"):
        containerd.load_archive(settings, arguments.archive)
    return 0


def _kubeconfig(settings: Settings, _: argparse.Namespace) -> int:
    print(choose(settings).kubeconfig())
    return 0


def _binaries(settings: Settings, arguments: argparse.Namespace) -> int:
    with exclusive(settings):
        binaries.ensure(settings, arguments.names)
    print(settings.programs)
    return 0


def _go_format(settings: Settings, arguments: argparse.Namespace) -> int:
    (go_checks.write_format if arguments.write else go_checks.check_format)(settings)
    return 0


def _go_test(settings: Settings, _: argparse.Namespace) -> int:
    go_checks.test(settings)
    return 0


def _leftovers(settings: Settings, _: argparse.Namespace) -> int:
    found = leftovers(settings)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


def _status(settings: Settings, _: argparse.Namespace) -> int:
    for name in (*DAEMONS, BUILD_DAEMON):
        identity = processes.recorded(settings, name)
        print(f"{name:24} {f'pid {identity.pid}' if identity else 'not running'}")
    for name in EXTRA_DAEMONS:
        if identity := processes.recorded(settings, name):
            print(f"{name:24} pid {identity.pid}")
    if not settings.kubeconfig.exists():
        print("no cluster")
        return 1
    problem = is_up(settings)
    print(f"{'cluster':24} {problem or 'works'}")
    if not problem:
        print(kubectl(settings, "get", "pods", "--all-namespaces", "--output=wide"), end="")
    return 1 if problem else 0


_COMMANDS: dict[str, tuple[Callable[[Settings, argparse.Namespace], int], str]] = {
    "cluster-up": (_cluster_up, "start the cluster, or do nothing if it works"),
    "cluster-down": (_cluster_down, "remove everything but the cache"),
    "images": (_images, "build images/NAME/Dockerfile into the cluster: all, or those named and what they need"),
    "addon": (_addon, "start agent-sandbox's controller or kwok beside the cluster, or remove it"),
    "gpus": (_gpus, "give the node's NVIDIA GPUs to pods, by NVIDIA's device plugin"),
    "load": (_load, "import images from an OCI archive into the cluster"),
    "kubeconfig": (_kubeconfig, "print the administrator's kubeconfig's path"),
    "status": (_status, "show the daemons and pods"),
    "leftovers": (_leftovers, "print what of the cluster is on the machine; nothing and status 0 when clean"),
    "binaries": (_binaries, "build the programs (all, or the sets named) without a cluster; print their folder"),
    "go-format": (_go_format, "check the format of the Go programs that are deployed"),
    "go-test": (_go_test, "vet and test the Go programs that are deployed"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dev/run", description="The development cluster.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (function, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(function=function)
        if name in ("images", "binaries"):
            command.add_argument("names", nargs="*", metavar="NAME")
        if name == "images":
            command.add_argument(
                "--for", type=Path, dest="images_for", metavar="EXAMPLE", help="those that this example needs, instead"
            )
        if name == "cluster-up":
            command.add_argument(
                "--images-for",
                type=Path,
                metavar="EXAMPLE",
                help="build the images that this example needs, too, while the rest of the cluster is made",
            )
        if name == "gpus":
            command.add_argument(
                "--slices", type=int, default=1, help="let this many pods share each GPU in turns (%(default)s)"
            )
        if name == "load":
            command.add_argument("archive", type=Path, metavar="ARCHIVE")
        if name == "addon":
            command.add_argument("name", choices=[extra.name for extra in extras.EXTRAS])
            command.add_argument("--remove", action="store_true", help="end it, and delete what it serves")
        if name == "go-format":
            command.add_argument("--write", action="store_true", help="mend it instead")
        if name == "cluster-down":
            command.add_argument("--check", action="store_true", help="only print what is left, like `leftovers`")
    return parser


def main() -> int:
    """Parse, run, and turn an expected error into a message."""
    arguments = _parser().parse_args()
    os.umask(0o022)
    try:
        function: Callable[[Settings, argparse.Namespace], int] = arguments.function
        return function(Settings(), arguments)
    except DevError as error:
        print(error.render(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `dev/run cluster-down` cleans up", file=sys.stderr)
        return 130


sys.exit(main())
