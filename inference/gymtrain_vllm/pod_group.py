"""A vLLM server that spans several pods (`spec.inference.nodes`): what its processes must agree on before they start.

    leader   draws the seed, tells it to each worker on its GROUP_PORT, and starts when all of them have it
    worker   waits for the leader, however long its image and model take, then starts

So nobody is in torch's group, which waits for minutes only, before all pods are there. The seed has to be one for all,
since tensor parallel workers draw the same tokens, and another one at each start of the group. A worker also learns the
leader's address as it is now: names of pods that were made anew change late.

LeaderWorkerSet says in variables which pod is which, and makes the whole group anew when one of its containers ends.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gymtrain_api import leader_worker_set, wiring
from gymtrain_vllm.errors import GroupError

_PATIENCE_SECONDS = 5.0  # with one connection
_EVERY_SECONDS = 1.0
_ACCEPT_TRIES = 60  # in a row, that often: then the listener is broken for good
_SAY_EVERY_SECONDS = 30.0
_LONGEST = 32  # bytes of a number


@dataclass(frozen=True)
class Place:
    """The place of this pod in its group.

    Attributes:
        index: 0 is the leader.
        leader: name of the leader.
        address: of this pod, where the others reach it.
    """

    index: int
    leader: str
    address: str


@dataclass(frozen=True)
class Start:
    """What one start of a group has in common.

    Attributes:
        seed: of its draws.
        leader: the leader's address.
    """

    seed: int
    leader: str


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """Reads the variables of the pod.

    Raises:
        GroupError: one is missing.
    """
    index, leader, address = (
        environment.get(name, "")
        for name in (leader_worker_set.ENV_WORKER_INDEX, leader_worker_set.ENV_LEADER_ADDRESS, "VLLM_HOST_IP")
    )
    if not index.isdecimal() or not leader or not address:
        raise GroupError(
            f"spec.inference.nodes: {leader_worker_set.ENV_WORKER_INDEX}, {leader_worker_set.ENV_LEADER_ADDRESS} and "
            "VLLM_HOST_IP must be set in a pod of a server on several nodes. LWS's webhook and the pod template set "
            "them: is the webhook there, and does spec.inference.template leave env alone?"
        )
    return Place(int(index), leader, address)


def lead(own: Place, seed: int, nodes: int, port: int = wiring.GROUP_PORT) -> Start:
    """Tells the seed to workers, in a thread, until the process ends; waits for the first question of each.

    Raises:
        GroupError: no worker can be heard any more.
    """
    family = socket.AF_INET6 if ":" in own.address else socket.AF_INET
    listener = socket.create_server((own.address, port), family=family)
    missing = set(range(1, nodes))
    told: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()
    threading.Thread(target=_tell, args=(listener, seed, told.put), name="pod-group", daemon=True).start()
    while missing:
        try:
            worker = told.get(timeout=_SAY_EVERY_SECONDS)
        except queue.Empty:
            print(f"gymtrain: waiting for workers {', '.join(map(str, sorted(missing)))}", flush=True)
            continue
        if isinstance(worker, OSError):
            raise GroupError(f"the leader can't listen for its workers at port {port}: {worker}") from worker
        missing.discard(worker)
    return Start(seed, own.address)


def _tell(listener: socket.socket, seed: int, told: Callable[[int | OSError], None]) -> None:
    failed = 0
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # too many open files, for one
            failed += 1
            if failed == _ACCEPT_TRIES:
                told(error)
                return
            time.sleep(_EVERY_SECONDS)
            continue
        failed = 0
        try:
            with connection:
                connection.settimeout(_PATIENCE_SECONDS)
                worker = _line(connection)
                connection.sendall(f"{seed}\n".encode())
        except (OSError, ValueError):
            continue  # it asks again
        told(worker)


def join(
    own: Place, port: int = wiring.GROUP_PORT, pause: Callable[[float], None] = time.sleep, tries: int | None = None
) -> Start:
    """Waits for the leader, without a limit unless there is one of `tries`.

    Raises:
        GroupError: all tries failed.
    """
    said = None
    while tries is None or tries > 0:
        try:
            return _ask(own, port)
        except (OSError, ValueError) as error:
            if said is None or time.monotonic() - said >= _SAY_EVERY_SECONDS:
                print(f"gymtrain: waiting for the leader {own.leader}: {error}", flush=True)
                said = time.monotonic()
        tries = None if tries is None else tries - 1
        pause(_EVERY_SECONDS)
    raise GroupError(f"the leader {own.leader} doesn't answer")


def _ask(own: Place, port: int) -> Start:
    with socket.create_connection((own.leader, port), _PATIENCE_SECONDS) as connection:
        connection.sendall(f"{own.index}\n".encode())
        return Start(_line(connection), str(connection.getpeername()[0]))


def _line(connection: socket.socket) -> int:
    """Reads the number that the other side sends.

    Raises:
        ValueError: it sends something else, or ends before.
    """
    said = b""
    while not said.endswith(b"\n"):
        if len(said) > _LONGEST or not (part := connection.recv(_LONGEST)):
            raise ValueError(f"it says {said!r}")
        said += part
    return int(said)
