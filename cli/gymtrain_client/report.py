"""The report of a run: made, or served, by gymtrain_report in a pod that has the run's folder.

```
gymtrain_report write ──── stdout ────► FILE.html
gymtrain_report serve ◄─── port ──────► a port of this machine, while somebody looks
```
In the trainer's pod it runs with the lowest priority and little memory, for the run's sake.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gymtrain_client.cluster import Cluster
from gymtrain_client.errors import ClientError, ReportError
from gymtrain_client.run_folder import CONTAINER, FOLDER, PodOutput, Reader, reader

_MEMORY_MIB = 1024  # beside a trainer
_SAID = 400  # characters of an error
_PART = 1 << 16
_LOOK_SECONDS = 1.0

type Progress = Callable[[int], None]
"""Called with the bytes that have come."""


def write(
    cluster: Cluster, run: str, out: Path, max_mib: int = 50, progress: Progress = lambda done: None
) -> tuple[Path, str]:
    """Writes the report as one HTML file, in the place of one that is there.

    Args:
        cluster: where the run is.
        run: its name.
        out: the file.
        max_mib: size of it at most; beyond, it shows a sample of the rollouts.
        progress: of the copy.

    Returns:
        `out`, and what the report says of its sample.

    Raises:
        ReportError: there is nothing to report yet, or the run's trainer is of a release without reports.
        FolderError: the run keeps no files, or no pod can read them.
        ClientError: the API server doesn't answer, or refuses.
    """
    partial = out.with_name(f".{out.name}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with reader(cluster, run) as found, partial.open("wb") as file:
            command = _command(found, run, "write", "--output", "-", "--max-mib", str(max_mib))
            with _running(cluster, found, command, progress) as output:
                while data := output.read(_PART):
                    file.write(data)
                _check(output)
                said = output.said.decode(errors="replace").strip().splitlines()
        partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    return out, said[-1] if said else ""


def rollouts(cluster: Cluster, run: str, chosen: Sequence[str] = ()) -> Iterator[dict[str, object]]:
    """Recorded rollouts, oldest first; raises as `write` does.

    Args:
        cluster: where the run is.
        run: its name.
        chosen: options of `python -m gymtrain_report rollouts`, such as --search=WORDS or --limit=10.
    """
    with reader(cluster, run) as found, _running(cluster, found, _command(found, run, "rollouts", *chosen)) as output:
        for line in output.lines():
            yield json.loads(line)
        _check(output)


def serve(cluster: Cluster, run: str, port: int, ready: Callable[[str], None], end: threading.Event) -> None:
    """Serves the report, live, on a port of this machine until `end` is set; raises as `write` does.

    Args:
        cluster: where the run is.
        run: its name.
        port: 0 for any that is free.
        ready: told the page's address.
        end: may be set by another thread.
    """
    with (
        reader(cluster, run) as found,
        _listening(port) as listener,
        _running(cluster, found, _command(found, run, "serve", "--port", "0", "--until-stdin-ends")) as output,
    ):
        address = next(output.lines(), b"").decode().strip()
        if not address.startswith("http"):
            _check(output)
            raise ReportError("the report's server did not say where it listens. Try again")
        away = int(address.rpartition(":")[2])
        ready(f"http://127.0.0.1:{listener.getsockname()[1]}")
        listener.settimeout(_LOOK_SECONDS)
        while not end.is_set():
            output.keep_up()
            if not output.is_open:
                _check(output)
                raise ReportError("the report's server has ended. Try again")
            try:
                browser, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_forward, args=(cluster, found.pod, away, browser), daemon=True).start()


def _command(found: Reader, run: str, name: str, *more: str) -> list[str]:
    gently = ["--memory-mib", str(_MEMORY_MIB)] if found.trains else []
    return ["nice", "-n", "19", "python3", "-m", "gymtrain_report", *gently, name, FOLDER, "--run", run, *more]


@contextmanager
def _running(
    cluster: Cluster, found: Reader, command: Sequence[str], progress: Progress = lambda done: None
) -> Iterator[PodOutput]:
    # The server ends when its standard input does: with this connection, however that ends.
    output = PodOutput(cluster.exec(found.pod, CONTAINER, command, stdin=True), progress)
    try:
        yield output
    finally:
        output.close()


def _check(output: PodOutput) -> None:
    """Raises ReportError where the program failed."""
    output.drain()
    if output.returncode == 0:
        return
    said = output.said.decode(errors="replace").strip()
    if "No module named gymtrain_report" in said:
        raise ReportError(
            "this run's trainer is of a release without reports: `gymtrain fetch RUN rewards.csv` has its curve"
        )
    raise ReportError(said.rpartition("error: ")[2][-_SAID:] or f"the report ended with status {output.returncode}")


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ReportError(f"port {port} of this machine can't be used: {error.strerror}. Try another --port") from error
    with listener:
        yield listener


def _forward(cluster: Cluster, pod: str, port: int, browser: socket.socket) -> None:
    """One connection of a browser, to that port of the pod."""
    with browser:
        try:
            away = cluster.connect(pod, port)
        except ClientError:
            return  # the browser asks again
        with contextlib.closing(away):
            back = threading.Thread(target=_copy, args=(away, browser), daemon=True)
            back.start()
            _copy(browser, away)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until either ends; the client's connections to pods know no half of one."""
    with contextlib.suppress(OSError):
        while data := source.recv(_PART):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
