"""More than a hundred real sandboxes of one run at once: all answer, and none stays."""

import json

import pytest

from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import NOWHERE, make_swe_tasks, swe_run
from tests.support.sandboxes import AGENT, Sandboxes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]

COUNT = 120
IMAGE = "docker.io/library/debian:trixie-slim"
LITTLE = {"requests": {"cpu": "1m", "memory": "8Mi", "ephemeral-storage": "1Mi"}, "limits": {"memory": "64Mi"}}

# Runs in the agent's pod: asks for all at once, then has each say its own name, then closes them.
# Arguments: how many, image.
PLAY = """
import asyncio, base64, json, os, sys, time
import aiohttp

BROKER = os.environ["GYMTRAIN_BROKER_URL"]
HEADERS = {"Authorization": "Bearer " + open(os.environ["GYMTRAIN_BROKER_TOKEN_FILE"]).read().strip()}

async def create(http, number, image):
    body = {"image": image, "task": f"task-{number}", "key": f"many-{number}"}
    async with http.post(BROKER + "/v1/sandboxes", json=body, params={"wait": "60"}, headers=HEADERS) as answer:
        box = await answer.json()
    while box.get("state") in ("Queued", "Starting"):
        async with http.get(BROKER + "/v1/sandboxes/" + box["id"], params={"wait": "60"}, headers=HEADERS) as answer:
            box = await answer.json()
    return box

async def say(http, box):
    headers = {"Authorization": "Bearer " + box["token"]}
    body = {"command": ["cat", "/etc/hostname"], "timeoutSeconds": 60}
    async with http.post(box["url"] + "/v1/exec", json=body, headers=headers) as answer:
        lines = [json.loads(line) for line in (await answer.read()).splitlines()]
    said = b"".join(base64.b64decode(line["d"]) for line in lines if line["t"] == "out").decode().strip()
    return said == box["podName"] and lines[-1].get("code") == 0

async def close(http, box):
    async with http.delete(BROKER + "/v1/sandboxes/" + box["id"], headers=HEADERS) as answer:
        return answer.status == 204

async def main():
    count, image = int(sys.argv[1]), sys.argv[2]
    timeout, seconds, began = aiohttp.ClientTimeout(total=1200), {}, time.monotonic()
    def passed(what):
        nonlocal began
        began, seconds[what] = time.monotonic(), round(time.monotonic() - began, 1)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        boxes = await asyncio.gather(*(create(http, number, image) for number in range(count)))
        passed("start")
        up = [box for box in boxes if box.get("state") == "Running"]
        async with http.get(BROKER + "/v1/sandboxes", headers=HEADERS) as answer:
            at_once = sum(box["state"] == "Running" for box in (await answer.json())["sandboxes"])
        said = await asyncio.gather(*(say(http, box) for box in up))
        passed("exec")
        closed = await asyncio.gather(*(close(http, box) for box in up))
        passed("close")
    others = [box.get("message", str(box)) for box in boxes if box.get("state") != "Running"][:3]
    counts = {"atOnce": at_once, "said": sum(said), "closed": sum(closed)}
    print(json.dumps({**counts, "others": others, "seconds": seconds}))

asyncio.run(main())
"""


def _pulled(kubectl: Kubectl, pod: str) -> float:
    """Pods that the broker has made to pull an image."""
    code = "import urllib.request as u; print(u.urlopen('http://many-broker:8000/metrics').read().decode())"
    lines = kubectl.run("exec", pod, "-c", "gym", "--", "python", "-S", "-c", code).splitlines()
    name = 'gymtrain_broker_made_total{made_for="PrePull"}'
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_a_hundred_sandboxes_run_at_once_and_none_stays(operator: Kubectl, kubectl: Kubectl) -> None:
    make_swe_tasks(kubectl)
    run = swe_run("many")
    run["spec"]["inference"]["resources"] = run["spec"]["trainer"]["resources"] = NOWHERE
    run["spec"]["sandboxes"] = {"maxConcurrent": COUNT, "resources": LITTLE, "prePull": {"images": [IMAGE]}}
    kubectl.apply(run)
    for condition in ("PreflightPassed", "SandboxesReady", "GymReady"):
        kubectl.wait_condition("many", condition, 360)
    boxes = Sandboxes(kubectl, "many", AGENT)
    eventually(lambda: _pulled(kubectl, boxes.pod) == 1 and not boxes.pods(), "the image was pulled ahead", 90)
    arguments = ("exec", boxes.pod, "-c", "gym", "--", "python", "-c", PLAY, str(COUNT), IMAGE)
    done = json.loads(kubectl.run(*arguments, timeout=1200).strip().splitlines()[-1])
    print(json.dumps(done))
    assert done["others"] == []
    assert (done["atOnce"], done["said"], done["closed"]) == (COUNT, COUNT, COUNT), done
    eventually(lambda: not boxes.pods(), "no sandbox is left", 120, every=3)
