"""A network for one thread and all that it starts, with loopback alone: chains beside each other use the same ports.
And names of hosts.

    python3 -m benchmarks.gpu.chain.namespace

That says whether this machine allows it: as root, with a kernel that has network namespaces. A namespace belongs to a
thread, so one process runs many chains, each from a thread of its own; it goes with the last process in it.
"""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

# For libraries that look for an address of this machine beyond loopback.
VARIABLES = {"VLLM_HOST_IP": "127.0.0.1", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}

# linux/sockios.h, linux/if.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
_FLAGS = "16sh22x"  # struct ifreq with a name and flags
_HOSTS = "/etc/hosts"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of the new mount namespace
_LOOKS = 200
_LOOK_SECONDS = 0.1


def enter() -> None:
    """Gives the calling thread, and what it starts from now on, a new network, and a /dev/shm of its own: vLLM's server
    removes what it finds there of earlier ones.

    Raises:
        OSError: this machine doesn't allow it.
    """
    os.unshare(os.CLONE_NEWNET)
    _keep_mounts()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8g", "tmpfs", _SHARED_MEMORY], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _, flags = struct.unpack(_FLAGS, fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack(_FLAGS, b"lo", 0)))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_FLAGS, b"lo", flags | _IFF_UP))


def add_name(name: str, addresses: Iterable[str], file: Path) -> None:
    """Lets the calling thread, and what it starts from now on, find these addresses by that name.

    Args:
        name: of a host that nobody else needs to know.
        addresses: all that it has.
        file: is written; stands in for /etc/hosts.

    Raises:
        OSError, subprocess.CalledProcessError: this machine doesn't allow it: it takes root.
    """
    file.write_text(Path(_HOSTS).read_text() + "".join(f"{address} {name}\n" for address in addresses))
    _keep_mounts()
    subprocess.run(["mount", "--bind", str(file), _HOSTS], check=True)


def _keep_mounts() -> None:
    """What the calling thread mounts from now on is seen by what it starts alone."""
    os.unshare(os.CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def end_processes() -> list[int]:
    """Kills what still runs in the calling thread's own network, such as an engine whose server was killed; their ids.

    Raises:
        RuntimeError: the thread never entered a network of its own, or something can't be killed.
    """
    own = _network("thread-self")
    if own is None or own == _network("self"):
        raise RuntimeError("this thread has no network of its own")
    ended: set[int] = set()
    for _ in range(_LOOKS):  # one that was killed is there for a moment, and may have started another before
        found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _network(entry.name) == own]
        if not found:
            return sorted(ended)
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        ended |= set(found)
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"processes can't be killed: {found}")


def refusal() -> str | None:
    """Why this machine doesn't allow it; None where it does."""
    errors: list[str] = []

    def attempt() -> None:
        try:
            enter()
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname(), timeout=5).close()
        except OSError as error:
            errors.append(f"no network namespace with loopback: {error}")

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return errors[0] if errors else None


def _network(process: str) -> str | None:
    """Which network the main thread of a process is in; None where it has ended."""
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(refusal())
