"""Names of all objects that a run owns, one function per name.

Two runs in a namespace never want the same name for two objects of one kind. Each name is the run's name and a suffix.
Two names could be the same only if one suffix ends with the other (`-training` and no suffix; `-gym-inference` and
`-inference`), so no suffix of a kind ends with another one of that kind. Users name Gym servers freely: an ambiguous
name gets a hash at its end. tests/unit/api/test_names.py checks this.
"""

import hashlib
import re

MAX_RUN_NAME = 40  # leaves room for suffixes below the 63 characters of a DNS label
_MAX_LABEL = 63
_DIGITS = 10  # of a hash
_LONGEST_IN_SET = _MAX_LABEL - len("gym-server-")

_SERVICES = ("gateway", "gateway-pods", "inference", "inference-pods", "trainer", "broker", "vllm")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def run_config(run: str) -> str:
    """ConfigMap with the run's settings (`run.json`), mounted in every pod."""
    return f"{run}-run"


def gym_config(run: str) -> str:
    """ConfigMap with the resolved Gym config (`config.yaml`) and preflight's verdict."""
    return f"{run}-gym"


def gym_server(run: str, server: str) -> str:
    """Deployment and Service of one Gym server: RUN-gym-SERVER, with `-` for each `_`.

    It ends with a hash if that would not be a DNS label, or could be an object of another run or server: if the run's
    name contains `-gym`, or the server has the name of one of our parts (`inference`).
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
    """Value of the label that selects the pods of a server. Keys of a Gym config can be longer than label values. It
    never changes, because a Deployment's selector can't."""
    if len(server) <= _MAX_LABEL:
        return server
    text = f"x-gym-{server}"
    start = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    return f"{start[:56].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def preflight(run: str, digest: str) -> str:
    """Preflight pod for one set of inputs."""
    return f"{run}-preflight-{digest[:8]}"


def gateway(run: str) -> str:
    """Deployment of the gateway, and the Service that Gym servers call."""
    return f"{run}-gateway"


def gateway_pods(run: str) -> str:
    """Headless Service over all gateway pods, so that the trainer can read the ledger of each."""
    return f"{run}-gateway-pods"


def inference(run: str) -> str:
    """Deployment of vLLM, and the Service over its pods that hold the run's weights."""
    return f"{run}-inference"


def inference_pods(run: str) -> str:
    """Headless Service over all vLLM pods, ready or not, for control calls to every pod."""
    return f"{run}-inference-pods"


def inference_groups(run: str) -> str:
    """LeaderWorkerSet of vLLM servers of several pods, and the headless Service that its controller makes.

    The leaders are named after it (RUN-vllm-0), a StatefulSet of workers after each leader, and they in turn
    (RUN-vllm-0-1). A StatefulSet's name can have 52 characters: its pods carry it in a label, with a hash.
    """
    return f"{run}-vllm"


def pod_set_of_gym_server(server: str) -> str:
    """Pod set of Gym servers with settings of their own, by the first of them."""
    dashed = server.replace("_", "-")
    readable = re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", dashed) and len(dashed) <= _LONGEST_IN_SET
    if readable and "-" not in server and not re.search(rf"(^|-)[0-9a-f]{{{_DIGITS}}}$", dashed):
        return f"gym-server-{dashed}"
    start = re.sub(r"[^a-z0-9]+", "-", server.lower())[: _LONGEST_IN_SET - _DIGITS - 1].strip("-")
    return f"gym-server-{start}-{_digest(server)}" if start else f"gym-server-{_digest(server)}"


def workload(run: str) -> str:
    """Kueue's Workload, named after the kind as Kueue names those that it makes."""
    return f"gymtrainingrun-{run}"


def pod_group(run: str) -> str:
    """PodGroup of the pods that are scheduled together."""
    return f"{run}-gang"


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


def data_volume(run: str) -> str:
    """PersistentVolumeClaim of the datasets that were fetched."""
    return f"{run}-data"


def compile_cache_volume(run: str) -> str:
    """PersistentVolumeClaim of what vLLM compiles."""
    return f"{run}-compile-cache"


def checkpoint_volume(run: str) -> str:
    """PersistentVolumeClaim of the checkpoints."""
    return f"{run}-checkpoints"


def broker(run: str) -> str:
    """Deployment and Service of the sandbox broker."""
    return f"{run}-broker"


def broker_identity(run: str, uid: str) -> str:
    """ServiceAccount of the broker, and the Secret with its token.

    The operator creates them and can't read them. So their name contains the resource's uid: an object of that name
    can't belong to an earlier run or to someone else.
    """
    return f"{run}-broker-{_digest(uid)}"


def run_token(run: str, uid: str) -> str:
    """Secret with the token of vLLM's control routes, named as the broker's is and for the same reason."""
    return f"{run}-token-{_digest(uid)}"


def broker_role(run: str, digest: str) -> str:
    """Role and RoleBinding of the broker, one pair per set of rules and resource (`digest` covers both)."""
    return f"{run}-broker-{digest[:_DIGITS]}"


def disruption_budget(run: str) -> str:
    """PodDisruptionBudget of the vLLM servers."""
    return f"{run}-inference"


def network_policy(run: str) -> str:
    """NetworkPolicy for the pods that every pod of the run may reach."""
    return f"{run}-servers"


def inner_network_policy(run: str) -> str:
    """NetworkPolicy for the vLLM and trainer pods, which Gym servers may not reach."""
    return f"{run}-training"


def worker_network_policy(run: str) -> str:
    """NetworkPolicy for the workers of vLLM servers of several pods, which the gateway may not reach either."""
    return f"{run}-vllm-workers"


def gym_network_policy(run: str) -> str:
    """Policy around the Gym servers."""
    return f"{run}-gym"


def sandbox_network_policy(run: str) -> str:
    """NetworkPolicy for the sandboxes."""
    return f"{run}-sandboxes"


def broker_network_policy(run: str) -> str:
    """NetworkPolicy for the broker, which sandboxes may not reach."""
    return f"{run}-broker"


def metrics_network_policy(run: str) -> str:
    """NetworkPolicy that lets scrapers of metrics in, where the operator knows of any."""
    return f"{run}-metrics"


def sandbox_shape(run: str, digest: str) -> str:
    """SandboxTemplate and SandboxWarmPool of one shape, if agent-sandbox makes the sandboxes."""
    return f"{run}-shape-{digest}"


def sandbox_probe(run: str) -> str:
    """SandboxWarmPool that shows whether agent-sandbox's controller works."""
    return f"{run}-probe"
