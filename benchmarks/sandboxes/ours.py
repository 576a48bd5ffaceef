"""Our side: this checkout's broker, as a process of this machine."""

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.sandboxes.kube import Kube, Object
from benchmarks.sandboxes.load import ClaimError, Held, until
from benchmarks.sandboxes.places import IMAGE, RESOURCES, Place
from gymtrain_api import labels
from tests.support.runs import tiny_run

_ROOT = Path(__file__).parents[2]
_RUN = "bench"
_WAIT = 300
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_VERBS = ["get", "list", "watch", "create", "patch", "delete"]  # of the Role that the operator makes


class Ours:
    """A broker and its client."""

    name = "ours"

    def __init__(self, http: aiohttp.ClientSession, url: str, token_file: Path, namespace: str, pid: int) -> None:
        self.http = http
        self.url = url
        self.token_file = token_file
        self.namespace = namespace
        self._pid = pid
        self._headers = {"Authorization": f"Bearer {token_file.read_text()}"}

    async def claim(self, image: str = IMAGE, task: str = "") -> Held:
        """By one request that waits."""
        url = f"{self.url}/v1/sandboxes?wait={_WAIT}"
        try:
            async with self.http.post(url, json={"image": image, "task": task}, headers=self._headers) as answer:
                found = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ClaimError(type(error).__name__) from error
        if answer.status != 201:
            raise ClaimError(f"{answer.status} {found.get('reason') or found.get('error')}")
        return Held(found["id"], found["podName"], found["warm"], found["url"], found["token"])

    async def close(self, held: Held) -> None:
        """By one request."""
        async with self.http.delete(f"{self.url}/v1/sandboxes/{held.id}", headers=self._headers) as answer:
            await answer.read()

    async def ready(self) -> int:
        """As the broker's metrics say."""
        found = re.search(r'gymtrain_broker_pods\{state="ready"\} ([0-9.]+)', await self.metrics())
        return int(float(found[1])) if found else 0

    async def metrics(self) -> str:
        """In Prometheus' text format."""
        async with self.http.get(f"{self.url}/metrics") as answer:
            return await answer.text()

    async def found(self) -> dict[str, int]:
        """Claims so far by what they found: ready, starting, none."""
        series = re.findall(r'gymtrain_broker_claims_total\{found="(\w+)"\} ([0-9.]+)', await self.metrics())
        return {name: int(float(value)) for name, value in series}

    def resident(self) -> float:
        """Of the broker's process."""
        return resident(self._pid)


def resident(pid: int) -> float:
    """Megabytes that a process has in memory."""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) / 1000


@asynccontextmanager
async def broker(
    kube: Kube, namespace: str, place: Place, *, token: str | None = None, **sandboxes: object
) -> AsyncIterator[Ours]:
    """A broker whose spec.sandboxes has these fields. With the token of one before it, it goes on with its pods."""
    run = tiny_run(_RUN)
    # Suspended, so that the operator starts nothing; without sandboxes, so that it doesn't sweep ours.
    run["spec"]["suspend"] = True
    owner = await kube.apply(f"/apis/{labels.API_VERSION}/namespaces/{namespace}/gymtrainingruns/{_RUN}", run)
    spec = run["spec"] | {
        "sandboxes": {"maxConcurrent": 8192, "resources": RESOURCES, "template": {"spec": place.pod}, **sandboxes}
    }
    document = {"name": _RUN, "namespace": namespace, "uid": owner["metadata"]["uid"], "spec": spec}
    document |= {"inference_url": "", "inference_pods_host": "", "trainer_host": ""}
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = {
            "run.json": json.dumps(document).encode(),
            "token": (token or secrets.token_hex(16)).encode(),
            "api-token": (await _identity(kube, namespace)).encode(),
            "ca.crt": kube.ca,
        }
        for file, content in files.items():
            (folder / file).write_bytes(content)
        async with _process(kube, folder) as (process, url), _client() as http:
            try:
                await until(lambda: _answers(http, url, process), "the broker is ready", 60)
                yield Ours(http, url, folder / "token", namespace, process.pid)
            finally:
                process.send_signal(signal.SIGTERM)
                await process.wait()


@asynccontextmanager
async def _process(kube: Kube, folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    port = _free_port()
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(_ROOT / part) for part in ("api", "kube", "tracing", "broker")),
        "GYMTRAIN_RUN_CONFIG": str(folder / "run.json"),
        "GYMTRAIN_BROKER_TOKEN_FILE": str(folder / "token"),
        "GYMTRAIN_BROKER_PORT": str(port),
        "GYMTRAIN_API_URL": kube.server,
        "GYMTRAIN_API_TOKEN_FILE": str(folder / "api-token"),
        "GYMTRAIN_API_CA_FILE": str(folder / "ca.crt"),
    }
    log = (folder / "broker.log").open("wb")
    with log:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gymtrain_broker", env=env, stderr=log)
    try:
        yield process, f"http://127.0.0.1:{port}"
    except BaseException:
        sys.stderr.write((folder / "broker.log").read_text(errors="replace")[-3000:])
        raise
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _client() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=_WAIT + 30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as http:
        yield http


async def _identity(kube: Kube, namespace: str) -> str:
    """A token with the rights of a run's broker."""
    core, rbac = f"/api/v1/namespaces/{namespace}", f"{_RBAC}/namespaces/{namespace}"
    meta = {"name": "broker"}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    await kube.apply(f"{core}/serviceaccounts/broker", account)
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": _VERBS}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules}
    await kube.apply(f"{rbac}/roles/broker", role)
    binding: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "broker"},
        "subjects": [{"kind": "ServiceAccount", "name": "broker", "namespace": namespace}],
    }
    await kube.apply(f"{rbac}/rolebindings/broker", binding)
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    made = await kube.create(f"{core}/serviceaccounts/broker/token", wanted)
    return str(made["status"]["token"])


async def _answers(http: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> bool:
    if process.returncode is not None:
        raise RuntimeError(f"the broker ended with {process.returncode}")
    with suppress(aiohttp.ClientError):
        async with http.get(f"{url}/readyz") as answer:
            return answer.status == 200
    return False


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
