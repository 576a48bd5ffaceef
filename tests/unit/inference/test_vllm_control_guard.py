"""vLLM's control routes ask for the run's token; those that generate or tell something don't."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.transports import LORA_ROUTES, NCCL_ROUTES, UPDATE_ROUTES
from gymtrain_vllm.control_guard import ControlGuard, read_token
from gymtrain_vllm.errors import TokenError

TOKEN = "secret"
CHANGING = ("/pause", "/resume", "/reset_prefix_cache", "/update_weight_version", "/sleep", "/collective_rpc")


async def _status(method: str, path: str, token: str | None = None, kind: str = "http") -> int | str:
    """The status of an answer, 200 where the server was asked, or the type of the first message."""
    sent: list[MutableMapping[str, Any]] = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    scope = {"type": kind, "path": path, "headers": headers} | ({"method": method} if kind == "http" else {})
    await ControlGuard(server, TOKEN)(scope, receive, send)
    return int(sent[0]["status"]) if "status" in sent[0] else str(sent[0]["type"])


@pytest.mark.parametrize("path", [*CHANGING, *UPDATE_ROUTES, *LORA_ROUTES, *NCCL_ROUTES])
async def test_a_route_that_changes_something_asks_for_the_token(path: str) -> None:
    assert await _status("POST", path) == 401
    assert await _status("POST", path, "another") == 401
    assert await _status("POST", path, TOKEN) == 200


@pytest.mark.parametrize("path", ["/pause/", "//pause", "/v1/completions/../pause", "/route/of/a/later/release"])
async def test_a_route_that_is_not_known_to_be_harmless_is_closed(path: str) -> None:
    assert await _status("POST", path) == 401


@pytest.mark.parametrize("path", ["/health", "/weight_info", "/is_paused", "/v1/models", "/metrics", "/openapi.json"])
async def test_what_operator_gateway_and_probes_ask_needs_no_token(path: str) -> None:
    assert await _status("GET", path) == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/chat/completions/render",
        "/v1/chat/completions/derender",
        "/inference/v1/generate",
        "/v1/completions",
        "/tokenize",
    ],
)
async def test_what_the_gateway_calls_needs_no_token(path: str) -> None:
    assert await _status("POST", path) == 200


async def test_other_connections_are_closed_without_the_token() -> None:
    assert await _status("", "/v1/realtime", kind="websocket") == "websocket.close"


def test_a_server_without_its_token_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="can't read"):
        read_token(tmp_path / "none")
    (tmp_path / "token").write_text("\n")
    with pytest.raises(TokenError, match="is empty"):
        read_token(tmp_path / "token")


def test_the_token_is_that_of_the_environments_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def server(*_: Any) -> None: ...

    monkeypatch.delenv("GYMTRAIN_RUN_TOKEN_FILE", raising=False)
    with pytest.raises(TokenError, match="names no file"):
        ControlGuard(server)
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("GYMTRAIN_RUN_TOKEN_FILE", str(tmp_path / "token"))
    ControlGuard(server)
