"""Sandboxes on the real cluster: life, isolation, what hostile code can do, and how they end."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.sandboxes import IMAGE, Sandboxes, running

# Tries to reach each address from inside. Something listens at most of them; a fence may refuse or stay silent.
PROBE = """
import concurrent.futures, json, socket, sys
def reached(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=4).close()
    except OSError:
        return False
    return True
addresses = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(json.dumps([a for a, hit in zip(addresses, pool.map(reached, addresses)) if hit]))
"""


@pytest.fixture(scope="module")
def box(boxes: Sandboxes) -> Iterator[dict[str, Any]]:
    """One sandbox that most tests share."""
    shared = running(boxes.create(IMAGE, task="shared"))
    yield shared
    boxes.close(shared)


def _out(done: dict[str, Any]) -> str:
    assert (done.get("t"), done.get("code")) == ("exit", 0), done
    return str(done["out"]).strip()


def test_the_run_says_what_its_sandboxes_are_made_of(run: Kubectl, backend: str, box: dict[str, Any]) -> None:
    status = run.get("gymtrainingrun", "boxes")["status"]
    (ready,) = [one for one in status["conditions"] if one["type"] == "SandboxesReady"]
    assert f"Backend {backend}: " in ready["message"]
    if backend == "AgentSandbox":
        (claim,) = run.list("sandboxclaims", "gymtrain.dev/run=boxes")
        assert claim["status"]["sandbox"]["name"] == box["podName"]


def test_a_command_runs_as_nobody_in_the_tasks_image(boxes: Sandboxes, box: dict[str, Any]) -> None:
    assert _out(boxes.run(box, "id -u; pwd; git -C /testbed log --oneline | wc -l", cwd="/testbed")).split() == [
        "65532",
        "/testbed",
        "1",
    ]


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(boxes: Sandboxes, box: dict[str, Any]) -> None:
    done = boxes.run(box, "setsid sleep 7777 & sleep 7200", seconds=2)
    assert done["timedOut"] is True
    assert done["seconds"] < 30
    assert _out(boxes.run(box, "grep -l 777[7] /proc/[0-9]*/cmdline 2>/dev/null | wc -l")) == "0"


def test_nothing_of_the_cluster_can_be_reached_from_inside(run: Kubectl, boxes: Sandboxes, box: dict[str, Any]) -> None:
    other = running(boxes.create(IMAGE, task="other"))
    pods = {pod["metadata"]["name"]: pod["status"].get("podIP") for pod in run.pods("boxes")}
    addresses = [f"{ip}:{port}" for ip in pods.values() if ip for port in (8000, 8080, 8787)]
    services = [s["spec"]["clusterIP"] for s in run.list("services") if s["spec"]["clusterIP"] != "None"]
    addresses += [f"{ip}:8000" for ip in services]
    cluster = json.loads(run.run("get", "service", "kubernetes", "-n", "default", "-o", "json"))["spec"]["clusterIP"]
    dns = json.loads(run.run("get", "service", "kube-dns", "-n", "kube-system", "-o", "json"))["spec"]["clusterIP"]
    node = run.list("nodes")[0]["status"]["addresses"][0]["address"]
    addresses += [f"{cluster}:443", f"{dns}:53", f"{node}:10250", f"{node}:6443", "169.254.169.254:80"]
    own = next(ip for name, ip in pods.items() if name == box["podName"])
    targets = [address for address in addresses if not address.startswith(f"{own}:")]
    assert f"{pods[other['podName']]}:8787" in targets
    found = boxes.run(box, f"python3 -c '{PROBE}' '{json.dumps(targets)}'", seconds=120)
    assert json.loads(_out(found)) == []
    assert _out(boxes.run(box, "ls /var/run/secrets 2>/dev/null | wc -l")) == "0", "no token of a ServiceAccount"
    boxes.close(other)


def test_the_broker_and_the_daemon_want_their_tokens(run: Kubectl, boxes: Sandboxes, box: dict[str, Any]) -> None:
    code = (
        "import sys, urllib.request, urllib.error\n"
        "for url in sys.argv[1:]:\n"
        "    request = urllib.request.Request(url, data=b'{}', headers={'Authorization': 'Bearer x'})\n"
        "    try: urllib.request.urlopen(request)\n"
        "    except urllib.error.HTTPError as error: print(error.code)\n"
    )
    urls = ("http://boxes-broker:8000/v1/sandboxes", f"{box['url']}/v1/exec")
    assert run.run("exec", boxes.pod, "-c", "gym", "--", "python", "-c", code, *urls).split() == ["401", "401"]


@pytest.mark.parametrize(
    ("attack", "seconds"),
    [
        ("kill -9 -1", 20),
        ("f() { f | f & }; f; sleep 60", 10),
        ("python3 -c 'x = bytearray(8 << 30)'", 60),
        ("yes", 5),
    ],
    ids=["kills everything", "fork bomb", "memory bomb", "endless output"],
)
def test_hostile_code_gets_an_answer_in_time_and_harms_no_other_sandbox(
    boxes: Sandboxes, box: dict[str, Any], attack: str, seconds: float
) -> None:
    victim = running(boxes.create(IMAGE, task="attack"))
    done = boxes.run(victim, attack, seconds=seconds)
    assert done.get("t") in ("exit", "error", "lost"), done
    # The daemon shares its pod's CPU with the attack, and on a full node the pod has a tenth of a core.
    assert done["seconds"] < seconds + PATIENCE
    assert _out(boxes.run(box, "echo works")) == "works"

    def settled() -> bool:
        """Either it works on, or the broker says what became of it."""
        again = boxes.run(victim, "echo here", seconds=10)
        return again.get("code") == 0 or boxes.get(victim)["state"] == "Failed"

    eventually(settled, "the sandbox answers, or has failed", 60)
    boxes.close(victim)


def test_a_token_opens_one_sandbox(boxes: Sandboxes, box: dict[str, Any]) -> None:
    other = running(boxes.create(IMAGE, task="other token"))
    assert boxes.run(other | {"token": box["token"]}, "true")["status"] == 401
    assert _out(boxes.run(box, "cat /proc/1/environ /gymtrain/token.sha256 2>/dev/null | grep -c TOKEN; true")) == "0"
    boxes.close(other)


def test_a_pod_that_somebody_deletes_is_told_and_not_mistaken_for_another(run: Kubectl, boxes: Sandboxes) -> None:
    victim = running(boxes.create(IMAGE, task="deleted"))
    run.run("delete", "pod", victim["podName"], "--wait=false")
    eventually(lambda: boxes.get(victim)["state"] == "Failed", "the sandbox has failed", 60)
    assert boxes.get(victim)["reason"] == "PodDeleted"
    eventually(lambda: victim["podName"] not in [p["metadata"]["name"] for p in boxes.pods()], "no pod is left", 60)


def test_a_gigabyte_of_output_is_cut_in_the_middle(boxes: Sandboxes, box: dict[str, Any]) -> None:
    done = boxes.run(box, "head -c 1000000000 /dev/zero; echo end", seconds=120, maxOutputBytes=1 << 20)
    assert done["code"] == 0
    assert done["outTruncated"] > 9e8
    assert done["bytes"] <= 2 << 20
    assert done["out"].endswith("end\n")


def test_a_full_disk_ends_the_sandbox_and_says_why(boxes: Sandboxes, box: dict[str, Any]) -> None:
    victim = running(boxes.create(IMAGE, task="disk", resources={"diskGiB": 0.2}))
    boxes.run(victim, "head -c 900M /dev/zero > /tmp/full; sleep 100", seconds=110)

    def failed() -> bool:
        return str(boxes.get(victim)["state"]) == "Failed"

    eventually(failed, "the sandbox that took too much disk has failed", 120, every=3)
    assert boxes.get(victim)["reason"] in ("Evicted", "PodDeleted", "Exited")
    assert _out(boxes.run(box, "echo works")) == "works"


def test_a_restarted_broker_knows_every_sandbox(run: Kubectl, boxes: Sandboxes, box: dict[str, Any]) -> None:
    (broker,) = run.pods("boxes", role="broker")
    run.run("delete", "pod", broker["metadata"]["name"], "--grace-period=0", "--force")
    run.run("rollout", "status", "deployment/boxes-broker", "--timeout=60s", timeout=90)
    found = boxes.get(box)
    assert (found["state"], found["podName"], found["token"]) == ("Running", box["podName"], box["token"])
    assert _out(boxes.run(box, "echo works")) == "works"


def test_an_image_that_does_not_exist_is_told_and_not_waited_for(boxes: Sandboxes) -> None:
    began = time.monotonic()
    box = boxes.create(
        "127.0.0.1:9/gymtrain/no-such-task:dev", timeoutSeconds=15
    )  # nothing listens: no answer to wait for
    assert box["state"] == "Failed"
    assert "no-such-task" in box["message"]
    assert time.monotonic() - began < 120


def test_closing_a_sandbox_deletes_its_pod(boxes: Sandboxes) -> None:
    closed = running(boxes.create(IMAGE, task="closed"))
    assert boxes.close(closed) == 204
    eventually(lambda: closed["podName"] not in [p["metadata"]["name"] for p in boxes.pods()], "its pod is gone", 30)
