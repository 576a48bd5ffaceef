"""The spec that a run goes by once preflight has passed.

What preflight checked can't change any more; the API server refuses it with CEL. But its CEL compares the
keys of free-form blocks (`trainer.config`, `gym.overrides`) only where both sides have them, so a key that is
renamed, added or removed slips through. Such a change must not reach pods unchecked: the settings that
preflight saw, kept in the run's ConfigMap, stay in force, and the status says so.
"""

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gymtrain_api import names
from gymtrain_api.runs import parse_run_config
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.validations import FIXED_AFTER_PREFLIGHT, LIVE_WITHIN
from gymtrain_operator.manifests.config_maps import RUN_KEY
from gymtrain_operator.reconcile.observation import Children


@dataclass(frozen=True)
class EffectiveSpec:
    """The spec in force, and the fields of the user's spec that are not."""

    spec: GymTrainingRunSpec
    ignored: tuple[str, ...]


def recorded_spec(children: Children, run: str) -> GymTrainingRunSpec | None:
    """Reads the spec that the run's pods were made from; None if there is no readable record."""
    stored = children.get("ConfigMap", names.run_config(run))
    text = ((stored or {}).get("data") or {}).get(RUN_KEY)
    try:
        return parse_run_config(text).spec if text else None
    except ValidationError:
        return None


def effective_spec(spec: GymTrainingRunSpec, recorded: GymTrainingRunSpec | None) -> EffectiveSpec:
    """Returns `spec` with what may not change taken from `recorded`. Both pass through the types of this release, so a
    field that is new in it is no difference."""
    if recorded is None:
        return EffectiveSpec(spec, ())
    wanted = spec.model_dump(mode="json", by_alias=True)
    fixed = recorded.model_dump(mode="json", by_alias=True)
    merged = copy.deepcopy(wanted)
    ignored = []
    for path in FIXED_AFTER_PREFLIGHT:
        old = _read(fixed, path)
        new, live = _read(wanted, path), LIVE_WITHIN.get(path, frozenset())
        if _without(new, live) != _without(old, live):
            _write(merged, path, old)
            ignored.append(f"spec.{path}")
    return EffectiveSpec(GymTrainingRunSpec.model_validate(merged) if ignored else spec, tuple(ignored))


def _read(spec: dict[str, Any], path: str) -> Any:
    value: Any = spec
    for key in path.split("."):
        value = value[key]
    return value


def _without(block: Any, live: Collection[str]) -> Any:
    """Returns a block without the fields that may change."""
    return {key: value for key, value in block.items() if key not in live} if live and block else block


def _write(spec: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    block = spec
    for key in parents:
        block = block[key]
    block[last] = value
