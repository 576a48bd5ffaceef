"""The Gym servers of a run: replicas of a stateful server stay correct, and strangers can't reach them."""

import json
from typing import Any

import pytest

from tests.support.kubectl import Kubectl, eventually
from tests.support.restricted import restricted_spec
from tests.support.runs import NOWHERE, tiny_run

MINUTES = 60
STATEFUL = "example_session_state_mgmt_resources_server"
AGENT = "example_session_state_mgmt_simple_agent"

# Runs in the agent's pod: sessions as the agent plays them, each call on a connection of its own. `urls` are drawn
# round robin: one URL is the Service, several are the pods themselves.
SESSIONS = """
import asyncio, itertools, json, sys
import aiohttp

async def session(urls):
    cookies = {}
    async def post(path, body):
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())} if cookies else {}
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), headers=headers) as client:
            async with client.post(next(urls) + path, json=body, timeout=aiohttp.ClientTimeout(total=20)) as answer:
                cookies.update({k: v.value for k, v in answer.cookies.items()})
                return await answer.json()
    await post("/seed_session", {"initial_count": 3})
    for count in (1, 2, 3):
        await post("/increment_counter", {"count": count})
    return (await post("/get_counter_value", {}))["count"] == 9

async def main():
    urls = itertools.cycle(json.loads(sys.argv[1]))
    print(sum([await session(urls) for _ in range(int(sys.argv[2]))]))

asyncio.run(main())
"""

# Prints what each URL answers, a line for each; the certificate doesn't matter.
REACH = """
import ssl, sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        answer = urllib.request.urlopen(url, timeout=5, context=ssl._create_unverified_context())
    except OSError as error:
        answer = error
    print(repr(answer.read() if hasattr(answer, "read") else answer))
"""
WORDS = ('"status"', "Directory listing", '"reason":')  # of a Gym server, the stranger, the API server that refuses


@pytest.fixture
def servers(operator: Kubectl, kubectl: Kubectl) -> Kubectl:
    """Two environments in one run, the stateful one with two replicas; vLLM and the trainer never find a node."""
    run: dict[str, Any] = tiny_run("envs")
    run["spec"]["inference"]["resources"] = run["spec"]["trainer"]["resources"] = NOWHERE
    run["spec"]["gym"]["configPaths"] = [
        "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml",
        "resources_servers/reasoning_gym/configs/reasoning_gym.yaml",
    ]
    run["spec"]["gym"]["servers"] = {STATEFUL: {"replicas": 2}}
    run["spec"]["data"]["train"][0]["agent"] = "reasoning_gym_simple_agent"
    run["spec"]["data"]["train"].append(
        {"source": "gym://resources_servers/example_session_state_mgmt/data/example.jsonl", "agent": AGENT}
    )
    kubectl.apply(run)
    kubectl.wait_condition("envs", "GymReady", 6 * MINUTES)
    return kubectl


def test_an_agent_reaches_one_replica_for_all_its_calls_and_no_stranger_nor_is_reached_by_one(servers: Kubectl) -> None:
    kinds = {s["name"]: s["kind"] for s in servers.get("gymtrainingrun", "envs")["status"]["servers"]}
    assert {kinds[STATEFUL], kinds[AGENT], kinds["reasoning_gym_simple_agent"]} == {"resources", "agent"}

    agent = servers.pods("envs", role="gym", server=AGENT)[0]["metadata"]["name"]

    def correct(urls: list[str], sessions: int) -> int:
        code = ("exec", agent, "-c", "gym", "--", "python", "-c", SESSIONS, json.dumps(urls), str(sessions))
        return int(servers.run(*code, timeout=240).strip().splitlines()[-1])

    url = next(s["url"] for s in servers.get("gymtrainingrun", "envs")["status"]["servers"] if s["name"] == STATEFUL)
    assert correct([url], 100) == 100

    replicas = servers.pods("envs", role="gym", server=STATEFUL)
    addresses = [f"http://{pod['status']['podIP']}:8000" for pod in replicas]
    assert len(addresses) == 2
    assert correct(addresses, 10) == 0, "without affinity this server is wrong: else this test shows nothing"

    # A pod of the same namespace that isn't of the run. Bodies count: some networks answer for every address.
    image = replicas[0]["spec"]["containers"][0]["image"]
    serve = ["python", "-m", "http.server", "8080", "--directory", "/tmp"]
    spec = restricted_spec({"name": "main", "image": image, "command": serve}, restartPolicy="Never")
    servers.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": spec})
    servers.run("wait", "--for=condition=Ready", "pod/stranger", "--timeout=90s", timeout=120)
    outside = [
        f"http://{servers.get('pod', 'stranger')['status']['podIP']}:8080/",
        "https://kubernetes.default.svc/",
    ]

    def reached(pod: str, container: str) -> list[bool]:
        said = servers.run("exec", pod, "-c", container, "--", "python", "-c", REACH, url, *outside, timeout=120)
        return [word in line for word, line in zip(WORDS, said.splitlines(), strict=True)]

    eventually(
        lambda: reached("stranger", "main") == [False, True, True], "a stranger reaches strangers alone", MINUTES
    )
    assert reached(agent, "gym") == [True, False, False], "a Gym pod, which runs others' code, reaches its run alone"
