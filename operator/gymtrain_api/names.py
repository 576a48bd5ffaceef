"""Names of every object that a run owns. One function a name, all here."""

import hashlib
import re

MAX_RUN_NAME = 40  # leaves room for suffixes below the 63 characters of a DNS label


def _label(text: str, limit: int = 63) -> str:
    """`text` as a DNS label of at most `limit` characters; a changed text gets a hash against clashes."""
    label = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    if label == text and len(label) <= limit:
        return label
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{label[: limit - 7].rstrip('-')}-{digest}"


def run_config(run: str) -> str:
    """ConfigMap with the run's own settings (`run.json`), mounted in every pod."""
    return f"{run}-run"


def gym_config(run: str) -> str:
    """ConfigMap with the resolved Gym config (`config.yaml`) and preflight's verdict."""
    return f"{run}-gym"


def gym_server(run: str, server: str) -> str:
    """Deployment and Service of one Gym server. `_` of Gym's names becomes `-`, unless that clashes."""
    dashed = server.replace("_", "-")
    name = f"{run}-gym-{dashed}"
    return name if re.fullmatch(r"[a-z0-9-]{1,63}", name) and "-" not in server else _label(f"{run}-gym-{server}")


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
    """Deployment and Service of the sandbox broker, its ServiceAccount, and the Secret with its token."""
    return f"{run}-broker"


def broker_role(run: str, digest: str) -> str:
    """Role and RoleBinding of the broker, one pair for each set of rules."""
    return f"{run}-broker-{digest[:8]}"


def network_policy(run: str) -> str:
    """NetworkPolicy around the pods of the run that all others of it may reach."""
    return f"{run}"


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
