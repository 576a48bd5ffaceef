"""Files and ports of this pod: the wiring contract's, or what the environment names for a gateway outside a pod.

| variable | replaces |
|---|---|
| GYMTRAIN_RUN_CONFIG | /etc/gymtrain/run/run.json |
| GYMTRAIN_GATEWAY_PORT | 8000 |
| GYMTRAIN_INFERENCE_PORT | 8000 |
| GYMTRAIN_TRAINER_PORT | 8080 |
"""

import os
from pathlib import Path

from gymtrain_api import wiring


def run_config() -> Path:
    """`RunConfig` as JSON."""
    return Path(os.environ.get("GYMTRAIN_RUN_CONFIG", wiring.RUN_CONFIG_FILE))


def port() -> int:
    """Where the gateway listens."""
    return int(os.environ.get("GYMTRAIN_GATEWAY_PORT", wiring.GATEWAY_PORT))


def inference_port() -> int:
    """Where the vLLM pods listen."""
    return int(os.environ.get("GYMTRAIN_INFERENCE_PORT", wiring.INFERENCE_PORT))


def trainer_port() -> int:
    """Where the trainer's pods listen."""
    return int(os.environ.get("GYMTRAIN_TRAINER_PORT", wiring.TRAINER_PORT))
