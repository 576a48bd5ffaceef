"""Sandboxes of a run on the cluster, used from where agents use them: inside a Gym server's pod."""

import json
from typing import Any

from tests.support.images import image
from tests.support.kubectl import Kubectl
from tests.support.runs import NOWHERE, swe_run

AGENT = "mini_swe_agent_2"  # the server that uses them
IMAGE = image("swe-marshmallow-4-2-2")  # of one task
IMAGE_WITH_VOLUMES = image("task-volumes")  # /data, and one that only root may list

# Runs in the agent's pod. Arguments: a verb and its arguments as JSON. The last line printed is the answer.
CLIENT = """
import asyncio, base64, json, os, sys, time
import aiohttp

BROKER = os.environ["GYMTRAIN_BROKER_URL"]
HEADERS = {"Authorization": "Bearer " + open(os.environ["GYMTRAIN_BROKER_TOKEN_FILE"]).read().strip()}

async def create(http, wait=240, **request):
    end = time.monotonic() + wait
    async with http.post(BROKER + "/v1/sandboxes", json=request, params={"wait": "60"}, headers=HEADERS) as answer:
        box = await answer.json()
    while box.get("state") in ("Queued", "Starting") and time.monotonic() < end:
        box = await get(http, box["id"], 60)
    return box

async def get(http, id, wait=0):
    async with http.get(BROKER + f"/v1/sandboxes/{id}", params={"wait": str(wait)}, headers=HEADERS) as answer:
        return await answer.json()

async def listed(http):
    async with http.get(BROKER + "/v1/sandboxes", headers=HEADERS) as answer:
        return (await answer.json())["sandboxes"]

async def close(http, id):
    async with http.delete(BROKER + f"/v1/sandboxes/{id}", headers=HEADERS) as answer:
        return answer.status

async def run(http, box, **exec):
    out, err, end = b"", b"", {}
    headers = {"Authorization": "Bearer " + box["token"]}
    began = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=exec["timeoutSeconds"] + 60)  # a daemon that is gone may say nothing at all
    try:
        async with http.post(box["url"] + "/v1/exec", json=exec, headers=headers, timeout=timeout) as answer:
            if answer.status != 200:
                return {"status": answer.status, **await answer.json()}
            while line := await answer.content.readuntil(b"\\n"):
                event = json.loads(line)
                if event["t"] == "out": out += base64.b64decode(event["d"])
                elif event["t"] == "err": err += base64.b64decode(event["d"])
                elif event["t"] in ("exit", "error"): end = event; break
    except (aiohttp.ClientError, asyncio.IncompleteReadError, TimeoutError) as error:
        end = {"t": "lost", "message": f"{type(error).__name__}: {error}"}
    keep = lambda data: data[-4000:].decode(errors="replace")
    return {**end, "out": keep(out), "err": keep(err), "bytes": len(out), "seconds": time.monotonic() - began}

async def main():
    verb, arguments = sys.argv[1], json.loads(sys.argv[2])
    timeout = aiohttp.ClientTimeout(total=540)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**22) as http:
        print(json.dumps(await globals()[verb](http, **arguments)))

asyncio.run(main())
"""


class Sandboxes:
    """A client in the pod of one Gym server of a run."""

    def __init__(self, kubectl: Kubectl, run: str, server: str) -> None:
        self._kubectl = kubectl
        self.run_name = run
        (pod,) = kubectl.pods(run, role="gym", server=server)
        self.pod: str = pod["metadata"]["name"]

    def _ask(self, verb: str, **arguments: Any) -> Any:
        code = ("exec", self.pod, "-c", "gym", "--", "python", "-c", CLIENT, verb, json.dumps(arguments))
        return json.loads(self._kubectl.run(*code, timeout=600).strip().splitlines()[-1])

    def create(self, image: str, **more: Any) -> dict[str, Any]:
        """A sandbox, once it runs or has failed."""
        box: dict[str, Any] = self._ask("create", image=image, **more)
        return box

    def get(self, box: dict[str, Any]) -> dict[str, Any]:
        """What the broker says of it now."""
        found: dict[str, Any] = self._ask("get", id=box["id"])
        return found

    def listed(self) -> list[dict[str, Any]]:
        """All that are open."""
        found: list[dict[str, Any]] = self._ask("listed")
        return found

    def close(self, box: dict[str, Any]) -> int:
        """Closes it; the HTTP status."""
        return int(self._ask("close", id=box["id"]))

    def run(self, box: dict[str, Any], shell: str, seconds: float = 60, **more: Any) -> dict[str, Any]:
        """A command of the shell; `out`, `err`, `code`, `timedOut` and what else the daemon says at its end."""
        done: dict[str, Any] = self._ask("run", box=box, shell=shell, timeoutSeconds=seconds, **more)
        return done

    def pods(self) -> list[dict[str, Any]]:
        """The sandbox pods that exist, those on their way out too."""
        return self._kubectl.pods(self.run_name, role="sandbox")


def idle_run(kubectl: Kubectl, name: str, **fields: Any) -> Sandboxes:
    """Sandboxes of a run whose vLLM and trainer never find a node, so that nothing disturbs them.

    `fields` are of its spec.sandboxes; the namespace holds the tasks.
    """
    run = swe_run(name)
    run["spec"]["inference"]["resources"] = run["spec"]["trainer"]["resources"] = NOWHERE
    run["spec"]["sandboxes"] |= {"lookAhead": {"tasks": 0}} | fields
    kubectl.apply(run)
    for condition in ("PreflightPassed", "SandboxesReady", "GymReady"):
        kubectl.wait_condition(name, condition, 360)
    return Sandboxes(kubectl, name, AGENT)


def running(box: dict[str, Any]) -> dict[str, Any]:
    """The sandbox, which runs.

    Raises:
        AssertionError: it doesn't; the text says what the broker says.
    """
    assert box.get("state") == "Running", box
    return box
