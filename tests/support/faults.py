"""Breaking parts of a run, and reading off its log what that did to the training."""

import json
from typing import Any, Literal

from tests.support.kubectl import Kubectl, KubectlError, eventually
from tests.support.runs import tiny_run

MINUTES = 60
CHECKED = {"name": "GYMTRAIN_CHECK_SAMPLES", "value": "1"}

type Moment = Literal["updating", "generating", "idle", "any"]  # of a vLLM server
type WhereTold = Literal["cmdline", "environ"]  # files of /proc: a command line that holds a word, or a NAME=VALUE

# Runs in a container whose pod shares one process namespace: waits for a moment of a vLLM pod, then kills the first
# process whose command line holds a word, or whose environment has a variable of that value.
_KILL_AT = """
import json, os, signal, sys, time, urllib.request
url, moment, word, seconds, file = sys.argv[1], sys.argv[2], sys.argv[3].encode(), float(sys.argv[4]), sys.argv[5]

def ask(path):
    return urllib.request.urlopen(url + path, timeout=2).read()

def found():
    if moment == "any":
        return moment
    try:
        paused = json.loads(ask("/is_paused"))["is_paused"]
        if paused or moment == "updating":
            return "updating" if paused else ""
        lines = ask("/metrics").decode().splitlines()
    except Exception:
        return ""
    running = [float(x.split()[-1]) for x in lines if x.startswith("vllm:num_requests_running")]
    return "" if not running else "generating" if sum(running) else "idle"

end = time.monotonic() + seconds
while time.monotonic() < end:
    if found() == moment:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = open(f"/proc/{pid}/{file}", "rb").read()
            except OSError:
                continue
            told = word in (line if file == "cmdline" else line.split(bytes(1)))
            if told and int(pid) != os.getpid() and b"is_paused" not in line:
                os.kill(int(pid), signal.SIGKILL)
                print("killed", pid)
                sys.exit(0)
    time.sleep(0.002)
sys.exit(f"vLLM was never {moment}")
"""


def checked_run(name: str, **trainer_config: Any) -> dict[str, Any]:
    """A tiny run whose trainer recomputes sampled log-probabilities, and whose pods share a process namespace."""
    run = tiny_run(name, **trainer_config)
    trainer = {"name": "trainer", "env": [CHECKED]}
    run["spec"]["trainer"]["template"] = {"spec": {"shareProcessNamespace": True, "containers": [trainer]}}
    run["spec"]["inference"]["template"] = {"spec": {"shareProcessNamespace": True}}
    return run


def step(kubectl: Kubectl, run: str) -> int:
    """Steps done, as the status says."""
    return int(kubectl.get("gymtrainingrun", run).get("status", {}).get("progress", {}).get("step", 0))


def wait_for_steps(kubectl: Kubectl, run: str, more: int, what: str, timeout: float = 4 * MINUTES) -> None:
    """Until that many more steps are done."""
    begin = step(kubectl, run)
    eventually(lambda: step(kubectl, run) >= begin + more, f"{more} steps after {what}", timeout)


def pod_of(kubectl: Kubectl, run: str, **labels: str) -> dict[str, Any]:
    """A running pod of the run."""
    found = [p for p in kubectl.pods(run, **labels) if p["status"].get("phase") == "Running"]
    assert found, f"no running pod of {run} with {labels}"
    return found[0]


def kill_pod(kubectl: Kubectl, run: str, **labels: str) -> None:
    """Deletes a pod at once, as a lost node would."""
    kubectl.run("delete", "pod", pod_of(kubectl, run, **labels)["metadata"]["name"], "--grace-period=0", "--force")


def kill_at(kubectl: Kubectl, run: str, moment: Moment, role: str, word: str, where: WhereTold = "cmdline") -> None:
    """SIGKILLs the process in a pod of `role` that `word` tells at such a moment of vLLM."""
    vllm = f"http://{pod_of(kubectl, run, role='inference')['status']['podIP']}:8000" if moment != "any" else ""
    name = pod_of(kubectl, run, role=role)["metadata"]["name"]
    command = ("exec", name, "-c", role, "--", "python", "-S", "-c", _KILL_AT, vllm, moment, word, "120", where)
    try:
        kubectl.run(*command, timeout=180)
    except KubectlError as error:
        # the container that we are in may die with its first process
        if "137" not in str(error) and "terminated" not in str(error):
            raise


def post_to_vllm(kubectl: Kubectl, run: str, path: str) -> None:
    """A control call, as one who may exec into the pod can make it: the run's token is there."""
    name = pod_of(kubectl, run, role="inference")["metadata"]["name"]
    code = (
        "import os, urllib.request as u; token = open(os.environ['GYMTRAIN_RUN_TOKEN_FILE']).read().strip(); "
        f"u.urlopen(u.Request('http://127.0.0.1:8000{path}', method='POST', "
        "headers={'Authorization': f'Bearer {token}'}), timeout=30)"
    )
    kubectl.run("exec", name, "-c", "inference", "--", "python", "-S", "-c", code)


def scale(kubectl: Kubectl, namespace: str, deployment: str, replicas: int) -> None:
    """Sets the replicas of a Deployment in another namespace."""
    kubectl.run("--namespace", namespace, "scale", "deployment", deployment, f"--replicas={replicas}")


def trainer_events(kubectl: Kubectl, run: str, kind: str) -> list[dict[str, Any]]:
    """JSON lines of one kind in the logs of the run's trainer pods, of all attempts that are still there.

    A pod that is only starting has said nothing yet.
    """
    lines: list[dict[str, Any]] = []
    pods = kubectl.pods(run, role="trainer")
    assert pods, f"{run} has no trainer pod to read a log of"
    for pod in pods:
        if pod["status"].get("phase", "Pending") == "Pending":
            continue
        lines += events_in(kubectl.logs(pod["metadata"]["name"], "trainer"), kind)
    return lines


def events_in(log: str, kind: str) -> list[dict[str, Any]]:
    """JSON lines of one kind in the log of one trainer."""
    return [json.loads(line) for line in log.splitlines() if line.startswith('{"event": "' + kind + '"')]


def assert_no_wrong_sample(kubectl: Kubectl, run: str) -> None:
    """Every checked sample has the log-probabilities of the weights that it claims, and there are enough of them."""
    checks = trainer_events(kubectl, run, "sample_check")
    assert sum(check["samples"] for check in checks) >= 20, f"too few samples were checked: {checks}"
    wrong = [check for check in checks if check["wrong"]]
    assert not wrong, f"samples of other weights than they claim: {wrong}"
    for line in trainer_events(kubectl, run, "step"):
        assert all(version.startswith(f"{run}:") for version in line["weight_versions"]), line
