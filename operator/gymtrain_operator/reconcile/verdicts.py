"""Reading preflight's verdict: of the pod's logs, and of the ConfigMap that keeps it."""

import json
from typing import Any

from pydantic import BaseModel, ValidationError

from gymtrain_api import names
from gymtrain_api.wiring import PREFLIGHT_MARK, GymPreflight, InferencePreflight, TrainerPreflight
from gymtrain_operator.manifests.config_maps import PREFLIGHT_KEY
from gymtrain_operator.reconcile.observation import Children, Verdict


def stored_verdict(children: Children, run: str) -> Verdict | None:
    """The verdict in the ConfigMap; None where there is none that can be read, and preflight is due again."""
    stored = children.get("ConfigMap", names.gym_config(run))
    text = ((stored or {}).get("data") or {}).get(PREFLIGHT_KEY)
    if not text:
        return None
    try:
        document: dict[str, Any] = json.loads(text)
        gym = GymPreflight.model_validate(document["gym"])
        trainer = TrainerPreflight.model_validate(document["trainer"])
        return Verdict(str(document["hash"]), gym, trainer)
    except (ValueError, KeyError, TypeError, ValidationError):
        return None


def gym_verdict(log: str) -> GymPreflight | None:
    """The Gym image's verdict in its log; None where it printed none."""
    return _document(log, GymPreflight)


def inference_verdict(log: str) -> InferencePreflight | None:
    """The verdict of vLLM's image in its log; None where it printed none."""
    return _document(log, InferencePreflight)


def trainer_verdict(log: str) -> TrainerPreflight | None:
    """The trainer image's verdict in its log; None where it printed none."""
    return _document(log, TrainerPreflight)


def _document[D: BaseModel](log: str, kind: type[D]) -> D | None:
    for line in reversed(log.splitlines()):
        # Libraries print without a newline at the end: the mark may stand in the middle of a line.
        _, mark, text = line.partition(PREFLIGHT_MARK)
        if mark:
            try:
                return kind.model_validate_json(text)
            except ValidationError:
                return None
    return None
