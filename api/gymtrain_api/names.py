"""Names of every object that a run owns. One function a name, all here.

No two runs of a namespace ever want one name for two objects of a kind. Each name is the run's and a part behind it.
Two runs could meet only where the part of the one ends with the part of the other (`-training` and none at all;
`-gym-inference` and `-inference`), so no part of a kind ends with another of it. The names of Gym servers are
anybody's: where one could be read in two ways it ends with a hash. tests/unit/api/test_names.py tries them.
"""

import hashlib
import re

MAX_RUN_NAME = 40  # leaves room for suffixes below the 63 characters of a DNS label
_MAX_LABEL = 63
_DIGITS = 10  # of a hash

_SERVICES = ("gateway", "gateway-pods", "inference", "inference-pods", "trainer", "broker")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def run_config(run: str) -> str:
    """ConfigMap with the run's own settings (`run.json`), mounted in every pod."""
    return f"{run}-run"


def gym_config(run: str) -> str:
    """ConfigMap with the resolved Gym config (`config.yaml`) and preflight's verdict."""
    return f"{run}-gym"


def gym_server(run: str, server: str) -> str:
    """Deployment and Service of one Gym server: RUN-gym-SERVER, with `-` for each `_`.

    With a hash behind it where that would be no DNS label, or could be an object of another run or server: where the
    run has `-gym` in its own name, or the server is called as a part of ours is (`inference`).
    """
    dashed = server.replace("_", "-")
    name = f"{run}-gym-{dashed}"
    readable = re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", dashed) and len(name) <= _MAX_LABEL
    ambiguous = (
        "-" in server
        or "-gym-" in f"{run}-"
        or any(f"-{dashed}".endswith(f"-{part}") for part in _SERVICES)
        or re.search(rf"-[0-9a-f]{{{_DIGITS}}}$", name)
    )
    if readable and not ambiguous:
        return name
    start = re.sub(r"[^a-z0-9-]+", "-", name.lower())[: _MAX_LABEL - _DIGITS - 1].rstrip("-")
    return f"{start}-{_digest(f'{run}/{server}')}"


def gym_server_label(server: str) -> str:
    """Value of the label by which the pods of a server are selected. Label values are shorter than keys of a Gym config
    may be. It never changes: a Deployment's selector can't."""
    if len(server) <= _MAX_LABEL:
        return server
    text = f"x-gym-{server}"
    start = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    return f"{start[:56].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def preflight(run: str, digest: str) -> str:
    """Preflight pod of one set of inputs."""
    return f"{run}-preflight-{digest[:8]}"


def gateway(run: str) -> str:
    """Deployment of the gateway, and the Service that Gym servers call."""
    return f"{run}-gateway"


def gateway_pods(run: str) -> str:
    """Headless Service over all gateway pods: the trainer reads the ledger of each."""
    return f"{run}-gateway-pods"


def inference(run: str) -> str:
    """Deployment of vLLM, and the Service over its pods that hold the run's weights."""
    return f"{run}-inference"


def inference_pods(run: str) -> str:
    """Headless Service over all vLLM pods, ready or not: for control calls, which go to every pod."""
    return f"{run}-inference-pods"


def sandbox(run: str, suffix: str) -> str:
    """Pod of one sandbox."""
    return f"{run}-sb-{suffix}"


def trainer(run: str) -> str:
    """Headless Service of the trainer's pods."""
    return f"{run}-trainer"


def trainer_job(run: str, attempt: int) -> str:
    """Training Job of one attempt."""
    return f"{run}-trainer-{attempt}"


def model_volume(run: str) -> str:
    """PersistentVolumeClaim of the model."""
    return f"{run}-model"


def checkpoint_volume(run: str) -> str:
    """PersistentVolumeClaim of the checkpoints."""
    return f"{run}-checkpoints"


def broker(run: str) -> str:
    """Deployment and Service of the sandbox broker."""
    return f"{run}-broker"


def broker_identity(run: str, uid: str) -> str:
    """ServiceAccount of the broker, and the Secret with its token.

    The operator creates them and can't look at them. So their name is of the resource's uid: one of the same name can't
    be that of an earlier run, or of somebody who had it before.
    """
    return f"{run}-broker-{_digest(uid)}"


def broker_role(run: str, digest: str) -> str:
    """Role and RoleBinding of the broker, one pair for each set of rules of each resource (`digest` is of both)."""
    return f"{run}-broker-{digest[:_DIGITS]}"


def network_policy(run: str) -> str:
    """NetworkPolicy around the pods of the run that all others of it may reach."""
    return f"{run}-servers"


def inner_network_policy(run: str) -> str:
    """NetworkPolicy around the vLLM and trainer pods, which Gym servers may not reach."""
    return f"{run}-training"


def sandbox_network_policy(run: str) -> str:
    """NetworkPolicy around the sandboxes."""
    return f"{run}-sandboxes"


def broker_network_policy(run: str) -> str:
    """NetworkPolicy around the broker, which sandboxes may not reach."""
    return f"{run}-broker"


def sandbox_shape(run: str, digest: str) -> str:
    """SandboxTemplate and SandboxWarmPool of one kind of sandbox, where agent-sandbox makes them."""
    return f"{run}-shape-{digest}"


def sandbox_probe(run: str) -> str:
    """SandboxWarmPool that shows whether agent-sandbox's controller is at work."""
    return f"{run}-probe"
