"""Files and port of this pod: the wiring contract's, or what the environment names for a server outside a pod.

| variable | replaces |
|---|---|
| GYMTRAIN_RUN_CONFIG | /etc/gymtrain/run/run.json |
| GYMTRAIN_ROOT | /gymtrain, above model, scratch and compile-cache |
| GYMTRAIN_INFERENCE_PORT | 8000 |
| GYMTRAIN_RUN_TOKEN_FILE | none: control routes ask for no token |
| OTEL_EXPORTER_OTLP_TRACES_ENDPOINT | none: no traces |
"""

import importlib.util
import os
from pathlib import Path

from gymtrain_api import wiring

# What vLLM imports for traces (0.32, vllm/tracing/otel.py).
_TRACING = (
    "opentelemetry.sdk",
    "opentelemetry.exporter.otlp.proto.grpc",
    "opentelemetry.exporter.otlp.proto.http",
)


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


def traces_endpoint() -> str | None:
    """URL that takes spans; None without one, or where vLLM lacks a package and so wouldn't start."""
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if endpoint and not all(map(_is_installed, _TRACING)):
        print(f"gymtrain: vLLM sends no traces: its image lacks one of {', '.join(_TRACING)}", flush=True)
        return None
    return endpoint or None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def port() -> int:
    """Port of the server."""
    return int(os.environ.get("GYMTRAIN_INFERENCE_PORT", wiring.INFERENCE_PORT))
