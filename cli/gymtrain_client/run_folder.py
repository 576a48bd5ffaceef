"""The run's folder on its checkpoint volume, seen from here: by a program that runs in a pod which has it.

```
trainer's pod, or a pod
that mounts the volume   ──── exec ────► PodOutput: stdout as a file, stderr as it comes, the exit status
```
"""

import io
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gymtrain_api import labels, names
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_client.cluster import Cluster, Object, patiently
from gymtrain_client.errors import FolderError

FOLDER = "/gymtrain/checkpoints"
CONTAINER = "trainer"
_SILENCE_SECONDS = 120.0  # without a byte
_READER_SECONDS = 300.0  # until a pod that reads is there
_READER_LIFE_SECONDS = 4 * 3600
_CHUNK = 1 << 20
_SAID_BYTES = 1 << 20  # of stderr


class PodOutput(io.RawIOBase):
    """What a program in a pod writes, as a file that is read to its end."""

    def __init__(self, process: Any, on_bytes: Callable[[int], None] = lambda done: None) -> None:
        """
        Args:
            process: as Cluster.exec returns it.
            on_bytes: told how many bytes have come, with each part.
        """
        self._process = process
        self._on_bytes = on_bytes
        self._waiting = b""
        self._done = 0
        self._heard = time.monotonic()
        self.said = b""
        """Of stderr, so far."""

    @property
    def returncode(self) -> int | None:
        """The program's exit status, once all is read. FolderError where the connection ended before the program."""
        try:
            code: int | None = self._process.returncode
        except TypeError as error:  # the official client's, where no status has come
            raise FolderError("the connection to the pod ended early. Try again") from error
        return code

    @property
    def is_open(self) -> bool:
        """Whether it may write more."""
        return bool(self._waiting or self._process.is_open())

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Of stdout: at most `size` bytes, as they come; none at its end.

        Raises:
            FolderError: nothing has come for two minutes, or the connection broke.
        """
        while not self._waiting and self._process.is_open():
            self._take()
        if not self._waiting:
            self._take()  # what came with the end
        wanted = len(self._waiting) if size < 0 else size
        data, self._waiting = self._waiting[:wanted], self._waiting[wanted:]
        return data

    def lines(self) -> Iterator[bytes]:
        """Of stdout, as they come."""
        rest = b""
        while data := self.read():
            *whole, rest = (rest + data).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def keep_up(self) -> None:
        """Takes what has come, and answers what the connection asks: called each second where nothing is expected."""
        if self._process.is_open():
            self._update(0)
            self._heard = time.monotonic()

    def drain(self) -> None:
        """Reads to the end, whatever comes."""
        while self.read(_CHUNK):
            pass

    def close(self) -> None:
        self._process.close()
        super().close()

    def _update(self, seconds: float) -> None:
        from websocket import WebSocketException

        try:
            self._process.update(timeout=seconds)
        except (WebSocketException, OSError) as error:
            raise FolderError(f"the connection to the pod broke: {error}. Try again") from error

    def _take(self) -> None:
        self._update(1)
        came, said = self._process.read_stdout(timeout=0), self._process.read_stderr(timeout=0)
        if came or said:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > _SILENCE_SECONDS:
            raise FolderError(f"nothing has come from the pod for {_SILENCE_SECONDS:g} s. Try again")
        self.said = (self.said + _bytes(said))[-_SAID_BYTES:]
        if came:
            self._waiting += _bytes(came)
            self._done += len(came)
            self._on_bytes(self._done)


def _bytes(data: Any) -> bytes:
    return data if isinstance(data, bytes) else str(data or "").encode("latin-1", "replace")


@dataclass(frozen=True)
class Reader:
    """A pod that sees the run's folder. `trains`: it is the trainer's, which what reads there must leave alone."""

    pod: str
    trains: bool


@contextmanager
def reader(cluster: Cluster, run: str) -> Iterator[Reader]:
    """A running pod that sees the run's folder: the trainer's first one, or one that is made for this, and removed.
    That of another trainer than gymtrain's may have no Python.

    Raises:
        FolderError: the run keeps no files, or that pod doesn't run.
        ClientError: the API server doesn't answer, or refuses.
    """
    found = cluster.run(run)
    ours = not (found["spec"].get("trainer") or {}).get("command")
    for pod in cluster.pods(labels.run_labels(run, labels.Role.TRAINER)) if ours else ():
        index = pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", "0")
        if index == "0" and pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
            yield Reader(pod["metadata"]["name"], trains=True)
            return
    made = cluster.create_pod(reader_pod(found))["metadata"]["name"]
    try:
        _await_running(cluster, made)
        yield Reader(made, trains=False)
    finally:
        patiently(lambda: cluster.delete_pod(made))


def reader_pod(run: Object) -> Object:
    """A pod under restricted Pod Security that mounts the run's folder read-only, and ends by itself.

    Raises:
        FolderError: the run keeps no files.
    """
    name, spec = run["metadata"]["name"], run["spec"]
    trainer = spec.get("trainer") or {}
    checkpoint = trainer.get("checkpoint")
    status = GymTrainingRunStatus.model_validate(run.get("status") or {})
    own = None if trainer.get("command") else trainer.get("image")
    image = own or (status.images.trainer if status.images else None)
    if not checkpoint:
        raise FolderError(f"run {name} has no trainer.checkpoint: what its pod wrote is gone with the pod")
    if not image:
        raise FolderError(f"run {name} hasn't begun to train: there is nothing to fetch")
    claim = checkpoint.get("claimName") or names.checkpoint_volume(name)
    mount: Object = {"name": "checkpoints", "mountPath": FOLDER, "readOnly": True}
    if checkpoint.get("claimName"):
        mount["subPath"] = name
    secure = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name[:40]}-fetch-{secrets.token_hex(3)}",
            "labels": {"app.kubernetes.io/name": "gymtrain-fetch"},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _READER_LIFE_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": secure,
            **({"serviceAccountName": account} if (account := spec.get("serviceAccountName")) else {}),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": ["python3", "-c", f"import time; time.sleep({_READER_LIFE_SECONDS})"],
                    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [mount],
                }
            ],
            "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


def _await_running(cluster: Cluster, pod: str) -> None:
    limit = time.monotonic() + _READER_SECONDS
    while True:
        status = cluster.pod(pod)["status"]
        if status.get("phase") == "Running":
            return
        waits = [
            f"{state['waiting'].get('reason')}: {state['waiting'].get('message', '')}"
            for one in status.get("containerStatuses") or []
            if "waiting" in (state := one.get("state") or {})
        ] or [c.get("message", "") for c in status.get("conditions") or [] if c.get("status") == "False"]
        if status.get("phase") == "Failed" or time.monotonic() > limit:
            raise FolderError(
                f"the pod {pod}, which reads the run's volume, doesn't run: {'; '.join(filter(None, waits))}"
            )
        time.sleep(1)
