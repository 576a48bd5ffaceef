"""Files of a run's folder, on its checkpoint volume, copied to here.

```
trainer's pod, or a pod      exec: a tar on stdout,
that mounts the volume ────────────────────────────► .NAME.partial ──► NAME
                          sizes and digests on stderr
```
The pod runs send.py, which is sent along with the names as arguments: no shell, and no release to agree on.
"""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gymtrain_client import send
from gymtrain_client.cluster import Cluster
from gymtrain_client.errors import FetchError
from gymtrain_client.run_folder import CONTAINER, FOLDER, PodOutput, reader

_LISTED = 40

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
        FolderError: the run keeps no files, or no pod can read them.
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
        with reader(cluster, run) as found:
            _receive(cluster, found.pod, name, partial, progress)
        target.parent.mkdir(parents=True, exist_ok=True)
        (partial / name).rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _receive(cluster: Cluster, pod: str, name: str, into: Path, progress: Progress) -> None:
    process = cluster.exec(pod, CONTAINER, ["python3", "-c", _SEND, FOLDER, name])
    stream = PodOutput(process, lambda done: progress(min(done, total := _bytes_of(stream)), total))
    try:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                tar.extractall(into, filter="data")  # refuses links and paths that lead out
        except (tarfile.TarError, OSError) as error:
            stream.drain()
            _say_why(stream, name)
            raise FetchError(f"{name} did not arrive whole: {error}. Try again") from error
        stream.drain()
        _say_why(stream, name)
        digests = _told(stream, "digests")
    finally:
        stream.close()
    if digests is None:
        raise FetchError("the copy ended early. Try again")
    for file, digest in digests.items():
        if _digest(into / file) != digest:
            raise FetchError(f"{file} did not arrive as it is in the cluster, or it changed meanwhile. Try again")


def _digest(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _say_why(stream: PodOutput, name: str) -> None:
    """Raises FetchError where the program failed."""
    if stream.returncode == 0:
        return
    there = _told(stream, "there")
    if there is not None:
        what = ", ".join(there[:_LISTED]) or "nothing yet"
        raise FetchError(f"there is no {name} in the run's folder; there is: {what}")
    raise FetchError(f"the pod could not send {name}: {stream.said.decode(errors='replace').strip()[-400:]}")


def _bytes_of(stream: PodOutput) -> int:
    """Of all files; 0 while it isn't known."""
    return int(_told(stream, "bytes") or 0)


def _told(stream: PodOutput, key: str) -> Any:
    """What the program has said of it; None where it hasn't."""
    return next((one[key] for one in _lines(stream.said) if key in one), None)


def _lines(said: bytes) -> Iterator[dict[str, Any]]:
    for line in said.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # a warning of the interpreter
