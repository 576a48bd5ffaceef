"""How verl's processes reach the one that speaks the contract: calls over a local connection."""

import functools
import os
import secrets
import threading
from multiprocessing.managers import BaseManager
from typing import Protocol, cast

from contract import Rollout

_ADDRESS = "GYMTRAIN_RPC_ADDRESS"
_KEY = "GYMTRAIN_RPC_KEY"  # who has it may run code in the trainer's process


class Service(Protocol):
    """What they may ask."""

    def rows(self) -> int:
        """How many rows data.train has."""

    def messages(self, number: int) -> object:
        """What row `number` asks the model."""

    def roll_out(self, number: int) -> Rollout | None:
        """A rollout of row `number`; None for one that failed for good."""

    def new_folder(self, step: int) -> str:
        """Where the files of the weights after a step belong."""

    def send(self, step: int) -> None:
        """Brings these to every vLLM pod."""


class _Server(BaseManager):
    pass


class _Client(BaseManager):
    pass


_Client.register("service")


def serve(service: Service) -> dict[str, str]:
    """Serves it in threads of its own; returns the variables by which other processes find it."""
    _Server.register("service", callable=lambda: service)
    key = secrets.token_hex()
    server = _Server(("127.0.0.1", 0), key.encode()).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = cast(tuple[str, int], server.address)
    return {_ADDRESS: f"{host}:{port}", _KEY: key}


@functools.cache
def service() -> Service:
    """The trainer's service, from another process. Each thread has a connection of its own."""
    host, _, port = os.environ[_ADDRESS].partition(":")
    client = _Client((host, int(port)), os.environ[_KEY].encode())
    client.connect()
    return cast(Service, client.service())  # type: ignore[attr-defined]
