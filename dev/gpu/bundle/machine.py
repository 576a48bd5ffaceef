"""The GPU machine's side: takes the parts, and runs commands in the root file system that came in them.

    python3 -m dev.gpu.bundle.machine receive PART ...
    python3 -m dev.gpu.bundle.machine run COMMAND ...

`receive` checks and keeps what arrived, and says what is missing. `run` unpacks once all is there, and goes on from
whatever is unpacked: in a mount namespace whose root is the one that came, with the repository at /gymtrain, the NVIDIA
driver's libraries where a distribution has them, and the machine's network and devices.

Run in the repository. Needs Python 3.12, tar, xz and root.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from dev.gpu.bundle import parts

PLACE = Path("/var/lib/gymtrain-bundle")
REPOSITORY = Path(__file__).resolve().parents[3]
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_DRIVER = Path("/usr/local/nvidia")
"""Where the machine's driver is, when it isn't where its linker looks."""
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
_MNT_DETACH = 2
_ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/root/.cache/gymtrain/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "GYMTRAIN_CONTAINERD": "2",
}
_DEADLINE = 600


class MachineError(Exception):
    """What is wrong, and what to do."""


def receive(arrived: list[Path], place: Path) -> int:
    """Keep the parts; the exit status is 0 once none is missing."""
    left: list[int] = []
    for part in arrived:
        left = parts.receive(part, place / "parts")
    print(f"missing: {', '.join(map(str, left))}" if left else "all parts are here")
    return 3 if left else 0


def unpack(place: Path) -> Path:
    """The root file system, unpacked unless it is there."""
    root, done = place / "root", place / "unpacked"
    index = place / "parts" / "index.json"
    if not index.exists():
        raise MachineError("no part has arrived: machine.py receive PART")
    if left := parts.missing(place / "parts"):
        raise MachineError(f"parts {', '.join(map(str, left))} are missing: machine.py receive PART")
    if done.exists() and done.read_text() == index.read_text():
        return root
    began = time.monotonic()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    files = parts.join(place / "parts", place / "files")
    archives = {file.name: file for file in files}
    # xz by itself: a stream of several blocks is then unpacked by several threads.
    _tar(archives["root.tar.xz"], root, "xz -T0")
    cache = root / "root" / ".cache" / "gymtrain"
    cache.mkdir(parents=True)
    _tar(archives["cache.tar.zst"], cache, f"chroot {root} zstd --long=27")  # which the machine itself may lack
    archives["images.tar"].rename(root / "images.tar")
    shutil.rmtree(place / "files")
    copied = _driver(root)
    done.write_text(index.read_text())
    print(f"unpacked in {time.monotonic() - began:.0f} s; {copied} files of the NVIDIA driver", flush=True)
    return root


def _tar(archive: Path, into: Path, program: str) -> None:
    command = ["tar", "--extract", f"--use-compress-program={program}", f"--file={archive}", f"--directory={into}"]
    subprocess.run(command, check=True, timeout=_DEADLINE)


def _driver(root: Path) -> int:
    """Libraries and programs of the driver, to where a distribution's package has them."""
    copied = 0
    for folder, target in (("lib64", _LIBRARIES), ("bin", "usr/bin")):
        if not (_DRIVER / folder).is_dir():
            continue
        for file in sorted((_DRIVER / folder).iterdir()):
            if file.is_file() and not (root / target / file.name).exists():
                shutil.copy2(file, root / target / file.name, follow_symlinks=False)
                copied += 1
    subprocess.run(["chroot", root, "ldconfig"], check=True, timeout=_DEADLINE)
    return copied


def _mount(source: str, target: Path, kind: str = "", flags: int = 0) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(source.encode(), str(target).encode(), kind.encode() or None, flags, None):
        raise MachineError(f"mounting {source} at {target}: {os.strerror(ctypes.get_errno())}")


def _hold(place: Path, root: Path, apart: bool) -> int:
    """The pid of the process that keeps the namespace, started unless it runs. With a network of its own if `apart`."""
    noted = place / "holder"
    if noted.exists() and Path(f"/proc/{noted.read_text()}/ns/mnt").exists():
        return int(noted.read_text())
    ready, told = os.pipe()
    if not os.fork():
        os.setsid()
        os.unshare(os.CLONE_NEWNS | (os.CLONE_NEWNET if apart else 0))
        _enter_root(root)
        if apart:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=60, env=_ENVIRONMENT)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        os.write(told, str(os.getpid()).encode())
        os.close(told)
        signal.pause()
        os._exit(0)
    os.close(told)
    pid = os.read(ready, 32).decode()
    if not pid:
        raise MachineError("the namespace could not be made: see above")
    noted.write_text(pid)
    return int(pid)


def _enter_root(root: Path) -> None:
    _mount("none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
    _mount(str(root), root, flags=_MS_BIND | _MS_REC)
    for name in ("dev", "sys", "proc"):
        _mount(f"/{name}", root / name, flags=_MS_BIND | _MS_REC)
    _mount("tmpfs", root / "run", "tmpfs")
    _mount("tmpfs", root / "tmp", "tmpfs")
    for name in ("machine-id", "resolv.conf"):
        (root / "etc" / name).write_bytes(Path("/etc", name).read_bytes() if Path("/etc", name).exists() else b"")
    (root / "old").mkdir(exist_ok=True)
    library = ctypes.CDLL(None, use_errno=True)
    os.chdir(root)
    if library.pivot_root(b".", b"old"):
        raise MachineError(f"pivot_root: {os.strerror(ctypes.get_errno())}")
    os.chdir("/")
    library.umount2(b"/old", _MNT_DETACH)
    # The kubelet hands mounts on to pods.
    _mount("none", Path("/"), flags=_MS_REC | _MS_SHARED)


def run(command: list[str], place: Path, apart: bool) -> int:
    """The command in that root, with this copy of the repository; returns its exit status."""
    root = unpack(place)
    # A machine gets the repository anew with each transfer; a folder that pods or daemons use must stay the same one.
    (root / "gymtrain").mkdir(exist_ok=True)
    ignored = shutil.ignore_patterns(".git", ".bundle", ".venv", ".*_cache", "__pycache__")
    shutil.copytree(REPOSITORY, root / "gymtrain", dirs_exist_ok=True, symlinks=True, ignore=ignored)
    holder = _hold(place, root, apart)
    spaces = os.CLONE_NEWNS | (os.CLONE_NEWNET if apart else 0)
    child = os.fork()
    if not child:
        os.setns(os.pidfd_open(holder), spaces)
        os.chdir("/gymtrain")
        passed = {name: value for name, value in os.environ.items() if name.startswith("GYMTRAIN_")}
        os.execvpe(command[0], command, _ENVIRONMENT | passed)  # noqa: S606
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Parse and do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, default=PLACE, help="where all is kept (%(default)s)")
    commands = parser.add_subparsers(required=True, dest="name", metavar="COMMAND")
    commands.add_parser("receive", help="keep parts").add_argument("parts", type=Path, nargs="+")
    runs = commands.add_parser("run", help="run a command in the root that came")
    runs.add_argument("--apart", action="store_true", help="in a network of its own: to try a bundle where it was made")
    runs.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.name == "receive":
        return receive(arguments.parts, arguments.place)
    if not arguments.command:
        parser.error("run: no command")
    return run(arguments.command, arguments.place, arguments.apart)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (MachineError, parts.DamagedError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")
