"""Where the API server is, and who asks."""

import base64
import json
import shutil
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from dev.cluster.pki import Authority
from gymtrain_kube import access as access_module
from gymtrain_kube import kubeconfig
from gymtrain_kube.access import Access, Fixed, TokenFile, in_pod, with_service_account
from gymtrain_kube.client import RestClient
from gymtrain_kube.errors import AccessError, UnreachableError
from tests.support.scripted_api import ScriptedApi

type Write = Callable[..., Path]


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of an API server and of one who asks it."""
    folder = tmp_path_factory.mktemp("pki")
    authority = Authority(folder, "ca")
    authority.create()
    authority.sign("server", "/CN=kube-apiserver", names=["IP:127.0.0.1"])
    authority.sign("client", "/O=system:masters/CN=somebody")
    return folder


@asynccontextmanager
async def _asking(access: Access) -> AsyncIterator[RestClient]:
    client = RestClient(access)
    try:
        yield client
    finally:
        await client.close()


# ── in a pod ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def account(tmp_path: Path, pki: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files and variables that the kubelet gives a pod."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("secret\n")
    (folder / "namespace").write_text("sys")
    shutil.copy(pki / "ca.crt", folder / "ca.crt")
    monkeypatch.setattr(access_module, "SERVICE_ACCOUNT", folder)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    return folder


async def test_in_a_pod_its_service_account_is_used(account: Path) -> None:
    found = in_pod()
    assert found is not None
    assert (found.url, found.namespace) == ("https://10.96.0.1:6443", "sys")
    assert await found.credentials.authorization() == "Bearer secret"


def test_an_address_of_ipv6_is_bracketed(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    found = in_pod()
    assert found is not None
    assert found.url == "https://[fd00::1]:6443"


def test_outside_a_pod_there_is_no_service_account(account: Path) -> None:
    (account / "token").unlink()
    assert in_pod() is None


@pytest.mark.parametrize("lost", ["ca.crt", "namespace"])
def test_a_service_account_that_lacks_a_file_says_which(account: Path, lost: str) -> None:
    (account / lost).unlink()
    with pytest.raises(AccessError, match="ServiceAccount's files"):
        in_pod()


def test_a_pod_without_the_api_servers_address_says_so(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(AccessError, match="KUBERNETES_SERVICE_HOST"):
        in_pod()


async def test_a_token_that_was_renewed_is_read_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    token = TokenFile(file)
    assert await token.authorization() == "Bearer old"
    file.write_text("new")
    assert await token.authorization() == "Bearer old"
    monkeypatch.setattr(access_module, "_TOKEN_SECONDS", 0.0)
    assert await token.authorization() == "Bearer new"


async def test_a_token_that_is_refused_is_read_again_at_once(api: ScriptedApi, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    async def only_the_new(request: web.Request) -> web.StreamResponse:
        good = request.headers["Authorization"] == "Bearer new"
        return web.json_response({} if good else {"message": "Unauthorized"}, status=200 if good else 401)

    api.handler = only_the_new
    async with _asking(Access(api.access.url, TokenFile(file))) as client:
        with pytest.raises(UnreachableError, match="401: Unauthorized"):
            await client.get("/p")
        assert len(api.requests) == 1, "there is no other token to try"
        file.write_text("new")
        assert await client.create("/p", {"a": 1}) == {}
    assert [request.body for request in api.requests[1:]] == [b'{"a":1}', b'{"a":1}']


async def test_a_token_that_can_t_be_read_is_an_error_of_our_own(tmp_path: Path, api: ScriptedApi) -> None:
    async with _asking(Access(api.access.url, TokenFile(tmp_path / "token"))) as client:
        with pytest.raises(UnreachableError, match="token for the API server"):
            await client.get("/p")


# ── with a kubeconfig ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a kubeconfig of one context and has KUBECONFIG name it."""

    def one(user: dict[str, Any], cluster: dict[str, Any] | None = None, **context: Any) -> Path:
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/", **(cluster or {})}}],
            "users": [{"name": "u", "user": user}],
        }
        file = tmp_path / "config"
        file.write_text(yaml.safe_dump(document))
        monkeypatch.setenv("KUBECONFIG", str(file))
        return file

    return one


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "t"}, "Bearer t"),
        ({"username": "n", "password": "p"}, "Basic bjpw"),
        ({"tokenFile": "token"}, "Bearer of-a-file"),
        ({}, ""),
    ],
)
async def test_a_kubeconfig_says_who_asks(write: Write, user: dict[str, Any], header: str) -> None:
    file = write(user, namespace="mine")
    (file.parent / "token").write_text("of-a-file\n")
    found = kubeconfig.load()
    assert (found.url, found.namespace) == ("http://127.0.0.1:1", "mine")
    assert await found.credentials.authorization() == header


def test_without_a_namespace_it_is_default(write: Write) -> None:
    write({"token": "t"})
    assert kubeconfig.load().namespace == "default"


def test_of_several_files_the_first_one_wins(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = write({"token": "t"}, namespace="second")
    first = tmp_path / "first"
    own = {"name": "here", "context": {"cluster": "c", "namespace": "first"}}
    first.write_text(yaml.safe_dump({"contexts": [own]}))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{first}:{second}")
    found = kubeconfig.load()
    assert (found.url, found.namespace) == ("http://127.0.0.1:1", "first")
    assert isinstance(found.credentials, Fixed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no current context"),
        ("current-context: there", "no context there"),
        ("current-context: here\ncontexts: [{name: here, context: {cluster: c}}]", "no cluster c"),
        ("current-context: here\ncontexts: [{name: here, context: {cluster: c}}]\nclusters: [{name: c}]", "no server"),
        ("[", "while parsing"),
        ("- a list", "has no attribute"),
    ],
)
def test_a_kubeconfig_that_can_t_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(AccessError, match=f"no usable kubeconfig .*{message}"):
        kubeconfig.load()


def test_without_a_kubeconfig_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(AccessError, match=r"no such file\. Set KUBECONFIG, or run in a pod"):
        kubeconfig.load()


@pytest.mark.parametrize(
    ("user", "message"), [({"auth-provider": {"name": "gcp"}}, "use exec"), ({"exec": {"apiVersion": "v1"}}, "none of")]
)
def test_who_can_t_ask_is_told_at_the_start(write: Write, user: dict[str, Any], message: str) -> None:
    write(user)
    with pytest.raises(AccessError, match=message):
        kubeconfig.load()


@asynccontextmanager
async def _https(pki: Path) -> AsyncIterator[str]:
    """An API server that asks for certificates and answers whom it saw."""

    async def who(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen = request.transport.get_extra_info("peercert")
        return web.json_response({key: value for part in seen["subject"] for key, value in part})

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "ca.crt"))
    tls.load_cert_chain(pki / "server.crt", pki / "server.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/who", who)
    server = TestServer(app, host="127.0.0.1", scheme="https")
    await server.start_server(ssl=tls, shutdown_timeout=0.1)
    try:
        yield f"https://127.0.0.1:{server.port}"
    finally:
        await server.close()


@pytest.mark.parametrize("form", ["data", "files"])
async def test_a_client_certificate_proves_who_asks(write: Write, pki: Path, tmp_path: Path, form: str) -> None:
    user: dict[str, str] = {}
    cluster: dict[str, str] = {}
    for into, key, name in (
        (cluster, "certificate-authority", "ca.crt"),
        (user, "client-certificate", "client.crt"),
        (user, "client-key", "client.key"),
    ):
        if form == "data":
            into[f"{key}-data"] = base64.b64encode((pki / name).read_bytes()).decode()
        else:
            shutil.copy(pki / name, tmp_path / name)
            into[key] = name  # beside the kubeconfig
    async with _https(pki) as url:
        write(user, {"server": url, **cluster})
        async with _asking(kubeconfig.load()) as client:
            assert await client.get("/who") == {"organizationName": "system:masters", "commonName": "somebody"}


async def test_who_signed_the_api_servers_certificate_is_asked(write: Write, pki: Path) -> None:
    own = {"client-certificate": str(pki / "client.crt"), "client-key": str(pki / "client.key")}
    async with _https(pki) as url:
        write(own, {"server": url})
        async with _asking(kubeconfig.load()) as client:
            with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get("/who")
        write(own, {"server": url, "insecure-skip-tls-verify": True})
        async with _asking(kubeconfig.load()) as client:
            assert (await client.get("/who"))["commonName"] == "somebody"


def test_a_service_accounts_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(AccessError, match="ServiceAccount's files"):
        with_service_account("https://api", tmp_path / "token", tmp_path / "ca.crt")


# ── with a program that a kubeconfig names ────────────────────────────────────────────────────────

PLUGIN = """
import json, os, pathlib, sys
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = pathlib.Path("@count@")
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
if os.environ.get("FAIL"):
    sys.exit("log in first")
status = {"token": f"{sys.argv[1]}-{number}"} | json.loads(os.environ.get("STATUS", "{}"))
print(json.dumps({"kind": asked["kind"], "apiVersion": asked["apiVersion"], "status": status}))
"""


@pytest.fixture
def program(tmp_path: Path, write: Write) -> Callable[..., Access]:
    """Access with a program beside the kubeconfig that counts its tokens: `t-1`, `t-2`."""
    file = tmp_path / "plugin"
    file.write_text(f"#!{sys.executable}\n" + PLUGIN.replace("@count@", str(tmp_path / "count")))
    file.chmod(0o755)

    def access(version: str = "v1", **variables: str) -> Access:
        spec = {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": "./plugin",
            "args": ["t"],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "installHint": "See the manual.",
        }
        write({"exec": spec})
        return kubeconfig.load()

    return access


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
async def test_a_program_is_asked_once_for_a_token(program: Callable[..., Access], version: str) -> None:
    credentials = program(version).credentials
    assert [await credentials.authorization() for _ in range(2)] == ["Bearer t-1", "Bearer t-1"]


async def test_a_program_is_asked_again_when_its_token_is_refused(program: Callable[..., Access]) -> None:
    credentials = program().credentials
    first = await credentials.authorization()
    assert await credentials.authorization(refused=first) == "Bearer t-2"
    assert await credentials.authorization(refused=first) == "Bearer t-2", "somebody else asked already"


@pytest.mark.parametrize(("seconds", "second"), [(-1, "Bearer t-2"), (3600, "Bearer t-1")])
async def test_a_program_is_asked_again_when_its_token_has_expired(
    program: Callable[..., Access], seconds: float, second: str
) -> None:
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
    credentials = program(STATUS=json.dumps({"expirationTimestamp": end})).credentials
    await credentials.authorization()
    assert await credentials.authorization() == second


async def test_a_program_that_fails_is_quoted(program: Callable[..., Access]) -> None:
    with pytest.raises(UnreachableError, match=r"plugin: .*ended with 1: log in first\. See the manual\."):
        await program(FAIL="1").credentials.authorization()


async def test_a_program_that_gives_no_token_is_an_error_of_our_own(
    program: Callable[..., Access], tmp_path: Path
) -> None:
    (tmp_path / "plugin").write_text("#!/bin/sh\necho '{\"status\": {}}'\n")
    with pytest.raises(UnreachableError, match="no token"):
        await program().credentials.authorization()


async def test_a_program_that_is_not_there_is_an_error_of_our_own(
    program: Callable[..., Access], tmp_path: Path
) -> None:
    (tmp_path / "plugin").unlink()
    with pytest.raises(UnreachableError, match="FileNotFoundError"):
        await program().credentials.authorization()


async def test_a_program_that_hangs_is_ended(
    program: Callable[..., Access], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeconfig, "_PROGRAM_SECONDS", 0.2)
    (tmp_path / "plugin").write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(UnreachableError, match=r"plugin: TimeoutError: it has given no token after 0\.2 s\. See"):
        await program().credentials.authorization()
