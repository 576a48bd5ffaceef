"""No rollout is scored in a session that this process does not hold."""

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gymtrain_gym.server.answers import SessionGuard, session_id

pytestmark = pytest.mark.gym


def replica(name: str = "weather") -> httpx.AsyncClient:
    """A process of a server as upstream builds it: each request has a session id, kept in a signed cookie."""

    async def endpoint(request: Request) -> JSONResponse:
        request.session["session_id"] = request.session.get("session_id", str(id(request)))
        return JSONResponse({"ok": True})

    routes = [Route(path, endpoint, methods=["POST"]) for path in ("/seed_session", "/verify", "/tool")]
    cookie = f"WeatherServer___{name}"
    app = Starlette(routes=routes, middleware=[Middleware(SessionMiddleware, secret_key="k", session_cookie=cookie)])
    transport = httpx.ASGITransport(app=SessionGuard(app, name))
    return httpx.AsyncClient(transport=transport, base_url="http://replica")


async def seed(client: httpx.AsyncClient) -> dict[str, str]:
    return dict((await client.post("/seed_session")).cookies)


async def verify(client: httpx.AsyncClient, cookies: dict[str, str]) -> int:
    header = "; ".join(f"{name}={value}" for name, value in cookies.items())
    response = await client.post("/verify", headers={"cookie": header} if cookies else {})
    return int(response.status_code)


async def test_session_of_this_process_is_scored() -> None:
    client = replica()
    assert await verify(client, await seed(client)) == 200


async def test_session_of_another_replica_is_not_scored() -> None:
    assert await verify(replica(), await seed(replica())) == 409


async def test_tool_call_does_not_adopt_a_foreign_session() -> None:
    client, cookies = replica(), await seed(replica())
    header = "; ".join(f"{name}={value}" for name, value in cookies.items())
    await client.post("/tool", headers={"cookie": header})
    assert await verify(client, cookies) == 409


async def test_scoring_without_a_session_passes() -> None:
    assert await verify(replica(), {}) == 200


async def test_cookies_of_other_servers_are_ignored() -> None:
    assert await verify(replica("weather"), await seed(replica("policy_model"))) == 200


@pytest.mark.parametrize("cookie", ["", "%%%", "bm8ganNvbg==.x.y", "W10=.x.y"])
def test_unreadable_cookie_is_no_session(cookie: str) -> None:
    found: Any = session_id(cookie)
    assert found is None
