"""The SWE tasks of examples/swe by upstream's own agent, in sandboxes of the cluster."""

import copy
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import collector
from tests.support.kubectl import Kubectl, eventually
from tests.support.restricted import restricted_spec
from tests.support.runs import swe_run, swe_tasks
from tests.support.sandboxes import AGENT

MINUTES = 60
# Of a rollout that ran a command in a sandbox, each with what it is below.
SPANS = {
    ("gymtrain-broker: POST /v1/sandboxes", f"gymtrain-gym-{AGENT}: sandbox create"),
    (f"gymtrain-gym-{AGENT}: sandbox exec", f"gymtrain-gym-{AGENT}: POST /run"),
    (f"gymtrain-gym-{AGENT}: POST /run", "gymtrain-trainer: POST /run"),
    ("gymtrain-gateway: generate", "gymtrain-gateway: POST /v1/chat/completions"),
    ("gymtrain-inference: llm_request", "gymtrain-gateway: generate"),
}
SUPPORT = Path(__file__).parents[2] / "support"

# Runs in the agent's pod: all rows of stdin, four at a time. Prints the reward of each task, or why there is none.
PLAY = """
import asyncio, json, sys
import aiohttp

async def main():
    turn, rewards = asyncio.Semaphore(4), {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as http:
        async def one(row):
            async with turn, http.post("http://127.0.0.1:8000/run", json=row) as answer:
                body = await answer.json()
                rewards[row["instance_id"]] = body.get("failure_reason") or body.get("reward", str(body)[:2000])
        await asyncio.gather(*(one(json.loads(line)) for line in sys.stdin if line.strip()))
    print(json.dumps(rewards))

asyncio.run(main())
"""


def _pod(name: str, spec: dict[str, Any], labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def _scripted_policy(run: Kubectl, play: str, image: str) -> str:
    """A pod that plays the policy; its address."""
    files = {"fake_policy.py": "tests/support/fake_policy.py", "scripted_policy.py": "tests/support/scripted_policy.py"}
    command = ["python", "-m", "tests.support.scripted_policy", "/tasks/tasks.jsonl", "--play", play]
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "workingDir": "/src",
        "env": [{"name": "PYTHONPATH", "value": "/src"}],
        "volumeMounts": [{"name": "code", "mountPath": "/src"}, {"name": "tasks", "mountPath": "/tasks"}],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
    }
    items = [{"key": key, "path": path} for key, path in files.items()]
    volumes = [
        {"name": "code", "configMap": {"name": "scripted-policy", "items": items}},
        {"name": "tasks", "configMap": {"name": "swe-tasks"}},
    ]
    # A Gym server as the run's own: those reach nothing else.
    name = f"policy-{play}"
    labels = {"gymtrain.dev/run": "boxes", "gymtrain.dev/role": "gym", "gymtrain.dev/server": name}
    run.apply(_pod(name, restricted_spec(container, volumes=volumes), labels))
    run.run("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s", timeout=90)
    return str(run.get("pod", name)["status"]["podIP"])


def _names(run: Kubectl) -> set[str]:
    return {pod["metadata"]["name"] for pod in run.pods("boxes", role="sandbox")}


def _server_again(run: Kubectl, deployment: str, name: str, hosts: dict[str, str]) -> str:
    """A Gym server of the run once more, with other addresses of some servers in its config; its own address."""
    config = run.get("configmap", "boxes-gym")["data"]
    gym = yaml.safe_load(config["config.yaml"])
    for server, host in hosts.items():
        inner = gym[server] if server == "head_server" else next(iter(next(iter(gym[server].values())).values()))
        inner["host"] = host
    data = {**config, "config.yaml": yaml.safe_dump(gym)}
    run.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
    template = copy.deepcopy(run.get("deployment", deployment)["spec"]["template"])
    for volume in template["spec"]["volumes"]:
        if volume.get("configMap", {}).get("name") == "boxes-gym":
            volume["configMap"]["name"] = name
    own = template["metadata"]["labels"] | {"gymtrain.dev/server": name}
    run.apply(_pod(name, template["spec"], own))
    run.run("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=180s", timeout=210)
    return str(run.get("pod", name)["status"]["podIP"])


@contextmanager
def _agent(run: Kubectl, play: str) -> Iterator[str]:
    """The pod of upstream's agent, whose policy plays a script."""
    run.run(
        "create",
        "configmap",
        "scripted-policy",
        *(f"--from-file={SUPPORT / name}" for name in ("fake_policy.py", "scripted_policy.py")),
        check=False,  # it exists the second time
    )
    image = run.pods("boxes", role="gym", server=AGENT)[0]["spec"]["containers"][0]["image"]
    policy = {"policy_model": _scripted_policy(run, play, image)}
    # The agent asks the head where its model is.
    head = _server_again(run, "boxes-gym-head-server", f"head-{play}", policy)
    agent = f"agent-{play}"
    _server_again(run, "boxes-gym-mini-swe-agent-2", agent, {**policy, "head_server": head})
    yield agent
    run.run("delete", "pod", agent, f"head-{play}", f"policy-{play}", "--wait=false")


def _play(run: Kubectl, agent: str, rows: str, timeout: float) -> dict[str, Any]:
    """What the agent answers for each row."""
    done = run.run("exec", "-i", agent, "-c", "gym", "--", "python", "-c", PLAY, stdin=rows, timeout=timeout)
    answers: dict[str, Any] = json.loads(done.strip().splitlines()[-1])
    return answers


@pytest.mark.parametrize(("play", "reward"), [("gold", 1.0), ("empty", 0.0)])
def test_the_fix_earns_the_reward_and_no_patch_earns_none(run: Kubectl, play: str, reward: float) -> None:
    """Upstream's agent plays all tasks through /run; the policy is a script that applies the fix, or does nothing."""
    before = _names(run)
    with _agent(run, play) as agent:
        rewards = _play(run, agent, swe_tasks(), 15 * MINUTES)
        assert len(rewards) >= 8
        assert rewards == dict.fromkeys(rewards, reward), run.run("logs", agent, "--tail=200")
    eventually(lambda: _names(run) <= before, "the agent has closed its sandboxes", 60)


def _leased(run: Kubectl) -> set[str]:
    claim = "gymtrain.dev/sandbox-claim"
    pods = run.pods("boxes", role="sandbox")
    return {pod["metadata"]["name"] for pod in pods if pod["metadata"].get("annotations", {}).get(claim)}


@pytest.mark.faults
def test_a_rollout_whose_sandbox_is_killed_is_told_and_not_scored(run: Kubectl) -> None:
    row = swe_tasks().splitlines()[0]
    with _agent(run, "slow") as agent, ThreadPoolExecutor(1) as pool:
        before = _leased(run)
        playing = pool.submit(_play, run, agent, row, 5 * MINUTES)
        (box,) = eventually(lambda: _leased(run) - before, "the agent has a sandbox", 60)
        run.run("wait", "--for=condition=Ready", f"pod/{box}", "--timeout=60s", timeout=90)
        time.sleep(5)  # its first command runs for minutes
        run.run("delete", "pod", box, "--grace-period=0", "--force")
        (answer,) = playing.result().values()
    assert "is lost" in str(answer), answer


def test_a_whole_run_on_the_tasks_completes_is_traced_and_leaves_no_sandbox(
    namespace: Kubectl, operator: Kubectl
) -> None:
    """The random model mends nothing, but its conversations become training steps. Nothing in the run calls the
    namespace's proxy, which nobody answers for."""
    proxy = {"http": "http://127.0.0.1:9", "https": "http://127.0.0.1:9"}
    defaults = {"kind": "GymTrainingDefaults", "metadata": {"name": "default"}, "spec": {"proxy": proxy}}
    namespace.apply({"apiVersion": "gymtrain.dev/v1alpha1", **defaults})
    collector.start(namespace)
    run = swe_run("swe")
    run["spec"]["tracing"] = collector.every_rollout(namespace)
    namespace.apply(run)
    namespace.wait_condition("swe", "Complete", 15 * MINUTES)
    namespace.run("delete", "gymtrainingdefaults", "default")
    eventually(lambda: not namespace.pods("swe", role="sandbox"), "no sandbox is left", 60)

    def in_one() -> set[tuple[str, str]]:
        """Where spans of the first rollout with all of SPANS came from, and below which they are."""
        for spans in collector.traces(namespace):
            names = {span.id: f"{span.service}: {span.name}" for span in spans}
            found = {(names[span.id], names.get(span.parent, "")) for span in spans}
            if found >= SPANS:
                return found
        return set()

    eventually(in_one, f"a rollout's trace has its sandbox: {SPANS}", 60)
