"""Connections to pods: each has an end, and one that breaks is told as what it is."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from websocket import WebSocketConnectionClosedException, WebSocketTimeoutException

from gymtrain_client.cluster import Cluster
from gymtrain_client.errors import FolderError, UnavailableError
from gymtrain_client.run_folder import PodOutput


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An API server that takes connections, and says nothing."""
    taken: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=take, daemon=True).start()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{listener.getsockname()[1]}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("gymtrain_client.cluster._POD_SECONDS", 0.2)
    yield Cluster(kubeconfig=str(tmp_path / "kubeconfig"))
    for one in (listener, *taken):
        one.close()


def test_a_connection_to_a_pod_that_is_not_made_in_time_is_given_up(silent: Cluster) -> None:
    with pytest.raises(UnavailableError, match=r"running a command in pod p: .* no connection after 0\.2 s"):
        silent.exec("p", "trainer", ["true"])
    with pytest.raises(UnavailableError, match=r"connecting to port 80 of pod p: .* no connection after 0\.2 s"):
        silent.connect("p", 80)


class _Process:
    """What the official client has of a command; `error` is how its connection ends."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.opened = True

    def is_open(self) -> bool:
        return self.opened

    def update(self, timeout: float) -> None:
        if self.error:
            raise self.error
        self.opened = False

    def read_stdout(self, timeout: float) -> bytes:
        return b""

    read_stderr = read_stdout

    def close(self) -> None:
        """Nobody reads any more."""

    @property
    def returncode(self) -> int:
        status: Any = None  # none came
        return int(status["status"])


@pytest.mark.parametrize(
    "error", [WebSocketConnectionClosedException("gone"), WebSocketTimeoutException("silent"), ConnectionResetError()]
)
def test_a_connection_that_breaks_is_an_error_that_says_what_to_do(error: Exception) -> None:
    output = PodOutput(_Process(error))
    with pytest.raises(FolderError, match=r"the connection to the pod broke: .*Try again"):
        output.read()
    with pytest.raises(FolderError, match="Try again"):
        output.keep_up()


def test_a_connection_that_ends_before_its_program_is_no_status() -> None:
    output = PodOutput(_Process(None))
    assert output.read() == b""
    with pytest.raises(FolderError, match=r"ended early\. Try again"):
        _ = output.returncode
