"""Reading what another release has stored: the run's spec, and run.json."""

import json

import pytest
from pydantic import ValidationError

from gymtrain_api.runs import InvalidRunError, parse_run_config, parse_spec
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import RunConfig
from tests.support.specs import of_a_later_release, smallest_run

SPEC = smallest_run(
    data={"train": [{"source": "pvc://datasets/train.jsonl"}, {"reasoningGym": {"task": "chain_sum", "size": 9}}]},
    trainer={"checkpoint": {"size": "1Gi"}},
    sandboxes={"warmPools": [{"image": "a:1"}], "network": {"mode": "Closed"}},
)["spec"]
LATER = of_a_later_release(SPEC)


def test_a_stored_spec_may_have_fields_of_another_release_at_every_depth() -> None:
    assert parse_spec(LATER) == GymTrainingRunSpec.model_validate(SPEC)


def test_run_json_may_have_fields_of_another_release_at_every_depth() -> None:
    run = {
        "name": "run",
        "namespace": "ns",
        "inference_url": "http://i",
        "inference_pods_host": "pods",
        "trainer_host": "trainer",
        "verifiers": {"agent": {"model_url": "http://m", "resources_url": "http://r"}},
    }
    verifiers = {"agent": run["verifiers"]["agent"] | {"fieldOfTomorrow": "x"}}  # type: ignore[index]
    later = run | {"spec": LATER, "verifiers": verifiers, "fieldOfTomorrow": {}}
    assert parse_run_config(json.dumps(later)) == RunConfig.model_validate(run | {"spec": SPEC})


def test_who_writes_a_spec_is_told_of_unknown_fields() -> None:
    with pytest.raises(ValidationError, match="fieldOfTomorrow"):
        GymTrainingRunSpec.model_validate(LATER)


def test_a_stored_spec_that_lacks_something_is_refused_field_by_field() -> None:
    with pytest.raises(InvalidRunError, match=r"spec\.model\.source: Field required"):
        parse_spec(LATER | {"model": {"fieldOfTomorrow": "x"}})
