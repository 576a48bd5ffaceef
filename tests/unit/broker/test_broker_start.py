"""What keeps a broker from starting, and how it reads the API server's refusals."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gymtrain_broker import settings
from gymtrain_broker.errors import (
    ClusterError,
    LostError,
    MissingError,
    RejectedError,
    StaleError,
    StartError,
    UnreachableError,
)
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.throttled_client import ThrottledClient
from tests.support.specs import of_a_later_release, smallest_run


def _files(folder: Path, *, token: str = "secret\n", uid: str = "u", **spec: Any) -> tuple[Path, Path]:
    hosts = {"inference_url": "", "inference_pods_host": "", "trainer_host": ""}
    run = {"name": "r", "namespace": "ns", "uid": uid, "spec": smallest_run(**spec)["spec"], **hosts}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "token").write_text(token)
    return folder / "run.json", folder / "token"


def test_the_settings_come_from_the_run(tmp_path: Path) -> None:
    files = _files(tmp_path, sandboxes={"maxConcurrent": 3}, serviceAccountName="puller")
    found = settings.read(*files)
    assert (found.run, found.namespace, found.uid, found.run_token) == ("r", "ns", "u", "secret")
    assert (found.spec.max_concurrent, found.service_account) == (3, "puller")


def test_a_run_json_of_a_later_release_is_read(tmp_path: Path) -> None:
    """The operator was upgraded, the broker's pod was not, and its container starts again."""
    files = _files(tmp_path, sandboxes={"warmPools": [{"image": "a:1"}]})
    before = settings.read(*files)
    files[0].write_text(json.dumps(of_a_later_release(json.loads(files[0].read_text()))))
    assert settings.read(*files) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sandboxes": None}, "no spec.sandboxes"),
        ({"sandboxes": {}, "token": " \n"}, "is empty"),
        ({"sandboxes": {}, "uid": ""}, "no uid"),
        ({"sandboxes": {"maxConcurrent": 0}}, "no run.json of this release"),
    ],
)
def test_a_broker_that_can_t_work_says_why(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        settings.read(*_files(tmp_path, **changes))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"token"):
        settings.read(_files(tmp_path, sandboxes={})[0], tmp_path / "nowhere" / "token")


def test_outside_a_cluster_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("GYMTRAIN_API_URL", raising=False)
    with pytest.raises(StartError, match="GYMTRAIN_API_URL"):
        ThrottledClient.connect(Metrics())


async def _error(status: int, message: str, method: str) -> ClusterError:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"message": message}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        kube = ThrottledClient(http, str(server.make_url("")).rstrip("/"), Metrics())
        with pytest.raises(ClusterError) as raised:
            await (kube.patch("/p", []) if method == "PATCH" else kube.create("/p", {}, urgent=True))
        return raised.value


@pytest.mark.parametrize(
    ("status", "method", "error"),
    [
        (401, "POST", UnreachableError),
        (404, "PATCH", MissingError),
        (409, "POST", LostError),
        (410, "POST", StaleError),
        (422, "PATCH", LostError),
        (422, "POST", RejectedError),
        (429, "POST", UnreachableError),
        (500, "PATCH", UnreachableError),
    ],
)
async def test_answers_become_errors_of_our_own(status: int, method: str, error: type[ClusterError]) -> None:
    found = await _error(status, "because", method)
    assert type(found) is error
    assert "because" in str(found)


@pytest.mark.parametrize(("message", "final"), [("exceeded quota: q", False), ("violates PodSecurity", True)])
async def test_only_a_quota_that_is_used_up_may_pass(message: str, final: bool) -> None:
    found = await _error(403, message, "POST")
    assert isinstance(found, RejectedError)
    assert found.final is final


async def test_an_api_server_that_is_not_there_is_an_error_of_our_own() -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(UnreachableError, match="ClientConnectorError"):
            await ThrottledClient(http, "http://127.0.0.1:1", Metrics()).get("/p")
