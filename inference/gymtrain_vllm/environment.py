"""Files and port of this pod: the wiring contract's, or what the environment names for a server outside a pod.

| variable | replaces |
|---|---|
| GYMTRAIN_RUN_CONFIG | /etc/gymtrain/run/run.json |
| GYMTRAIN_ROOT | /gymtrain, above model, scratch and compile-cache |
| GYMTRAIN_INFERENCE_PORT | 8000 |
| GYMTRAIN_RUN_TOKEN_FILE | none: control routes ask for no token |
"""

import os
from pathlib import Path

from gymtrain_api import wiring


def _below_root(path: str) -> Path:
    return Path(os.environ.get("GYMTRAIN_ROOT", "/gymtrain")) / Path(path).name


def run_config() -> Path:
    """`RunConfig` as JSON."""
    return Path(os.environ.get("GYMTRAIN_RUN_CONFIG", wiring.RUN_CONFIG_FILE))


def model() -> Path:
    """The model's folder."""
    return _below_root(wiring.MODEL_DIR)


def scratch() -> Path:
    """The writable folder."""
    return _below_root(wiring.SCRATCH_DIR)


def compile_cache() -> Path:
    """The volume for what vLLM compiles, where the run has one."""
    return _below_root(wiring.COMPILE_CACHE_DIR)


def run_token_file() -> Path | None:
    """The token that control routes ask for; None where they ask for none."""
    return Path(found) if (found := os.environ.get(wiring.ENV_RUN_TOKEN_FILE)) else None


def port() -> int:
    """Port of the server."""
    return int(os.environ.get("GYMTRAIN_INFERENCE_PORT", wiring.INFERENCE_PORT))
