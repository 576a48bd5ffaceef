"""Files of a run's folder, on its checkpoint volume, copied to here.

```
trainer's pod, or a pod      exec: a tar on stdout,
that mounts the volume ────────────────────────────► .NAME.partial ──► NAME
                          sizes and digests on stderr
```
The pod runs send.py, which is sent along with the names as arguments: no shell, and no release to agree on.
"""

import hashlib
import io
import json
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymtrain_api import labels, names
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_client import send
from gymtrain_client.cluster import Cluster, Object
from gymtrain_client.errors import FetchError

FOLDER = "/gymtrain/checkpoints"
_CONTAINER = "trainer"
_SILENCE_SECONDS = 120.0  # without a byte
_READER_SECONDS = 300.0  # until a pod that reads is there
_READER_LIFE_SECONDS = 4 * 3600
_LISTED = 40
_CHUNK = 1 << 20

_SEND = Path(send.__file__).read_text()

type Progress = Callable[[int, int], None]
"""Called with the bytes that have come, and those of all files."""


def fetch(cluster: Cluster, run: str, name: str, out: Path, progress: Progress = lambda done, total: None) -> Path:
    """Copies a file or folder of the run's folder to `out`; the path of the copy.

    Args:
        cluster: where the run is.
        run: its name.
        name: such as model, best, checkpoint-40, records or rewards.csv.
        out: a folder, which is made.
        progress: of the copy.

    Raises:
        FetchError: it isn't there, the copy would replace something, or didn't arrive whole.
        ClientError: the API server doesn't answer, or refuses.
    """
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise FetchError(f"{name!r} must be a name in the run's folder, such as model, best or rewards.csv")
    target = out / name
    if target.exists():
        raise FetchError(f"{target} is there already: remove it, or choose another folder with --output")
    partial = out / f".{parts[0]}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with _reader(cluster, run) as pod:
            _receive(cluster, pod, name, partial, progress)
        target.parent.mkdir(parents=True, exist_ok=True)
        (partial / name).rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _receive(cluster: Cluster, pod: str, name: str, into: Path, progress: Progress) -> None:
    stream = _Output(cluster.exec(pod, _CONTAINER, ["python3", "-c", _SEND, FOLDER, name]), progress)
    try:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                tar.extractall(into, filter="data")  # refuses links and paths that lead out
        except (tarfile.TarError, OSError) as error:
            stream.drain()
            stream.say_why(name)
            raise FetchError(f"{name} did not arrive whole: {error}. Try again") from error
        stream.drain()
        stream.say_why(name)
    finally:
        stream.close()
    for file, digest in stream.digests().items():
        if _digest(into / file) != digest:
            raise FetchError(f"{file} did not arrive as it is in the cluster, or it changed meanwhile. Try again")


def _digest(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class _Output(io.RawIOBase):
    """What the program in the pod writes, as a file that is read to its end."""

    def __init__(self, process: Any, progress: Progress) -> None:
        self._process = process
        self._progress = progress
        self._waiting = b""
        self._said = b""
        self._done = self._total = 0
        self._heard = time.monotonic()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._waiting and self._process.is_open():
            self._take()
        if not self._waiting:
            self._take()  # what came with the end
        wanted = len(self._waiting) if size < 0 else size
        data, self._waiting = self._waiting[:wanted], self._waiting[wanted:]
        return data

    def _take(self) -> None:
        self._process.update(timeout=1)
        came, said = self._process.read_stdout(timeout=0), self._process.read_stderr(timeout=0)
        if came or said:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > _SILENCE_SECONDS:
            raise FetchError(f"nothing has come from the pod for {_SILENCE_SECONDS:g} s. Try again")
        self._said += _bytes(said)
        if came:
            self._waiting += _bytes(came)
            self._done += len(came)
            self._total = self._total or next((one["bytes"] for one in self._lines() if "bytes" in one), 0)
            self._progress(min(self._done, self._total), self._total)

    def drain(self) -> None:
        """Reads to the end, whatever comes."""
        while self.read(_CHUNK):
            pass

    def say_why(self, name: str) -> None:
        """Raises FetchError where the program failed."""
        code = self._process.returncode
        if code == 0:
            return
        there = next((one["there"] for one in self._lines() if "there" in one), None)
        if there is not None:
            what = ", ".join(there[:_LISTED]) or "nothing yet"
            raise FetchError(f"there is no {name} in the run's folder; there is: {what}")
        raise FetchError(f"the pod could not send {name}: {self._said.decode(errors='replace').strip()[-400:]}")

    def digests(self) -> dict[str, str]:
        """Of the files that were sent; raises FetchError where the end is missing."""
        found = next((one["digests"] for one in self._lines() if "digests" in one), None)
        if found is None:
            raise FetchError("the copy ended early. Try again")
        return dict(found)

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in self._said.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # a warning of the interpreter

    def close(self) -> None:
        self._process.close()
        super().close()


def _bytes(data: Any) -> bytes:
    return data if isinstance(data, bytes) else str(data or "").encode("latin-1", "replace")


# --- the pod ---


@contextmanager
def _reader(cluster: Cluster, run: str) -> Iterator[str]:
    """A running pod that sees the run's folder: the trainer's first one, or one that is made for this, and removed.
    That of another trainer than gymtrain's may have no Python."""
    found = cluster.run(run)
    ours = not (found["spec"].get("trainer") or {}).get("command")
    for pod in cluster.pods(labels.run_labels(run, labels.Role.TRAINER)) if ours else ():
        index = pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", "0")
        if index == "0" and pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
            yield pod["metadata"]["name"]
            return
    made = cluster.create_pod(reader_pod(found))["metadata"]["name"]
    try:
        _await_running(cluster, made)
        yield made
    finally:
        cluster.delete_pod(made)


def reader_pod(run: Object) -> Object:
    """A pod under restricted Pod Security that mounts the run's folder read-only, and ends by itself.

    Raises:
        FetchError: the run keeps no files.
    """
    name, spec = run["metadata"]["name"], run["spec"]
    trainer = spec.get("trainer") or {}
    checkpoint = trainer.get("checkpoint")
    status = GymTrainingRunStatus.model_validate(run.get("status") or {})
    own = None if trainer.get("command") else trainer.get("image")
    image = own or (status.images.trainer if status.images else None)
    if not checkpoint:
        raise FetchError(f"run {name} has no trainer.checkpoint: what its pod wrote is gone with the pod")
    if not image:
        raise FetchError(f"run {name} hasn't begun to train: there is nothing to fetch")
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
                    "name": _CONTAINER,
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
            raise FetchError(
                f"the pod {pod}, which reads the run's volume, doesn't run: {'; '.join(filter(None, waits))}"
            )
        time.sleep(1)
