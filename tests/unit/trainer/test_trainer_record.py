"""The record of a step."""

import json

from gymtrain_trainer.monitoring.record import step_line, step_record
from gymtrain_trainer.rollouts.buffer import Taken


def test_a_steps_line_names_the_weights_of_its_samples() -> None:
    used = [
        Taken(1, 1.0, 0.5, 0, 10, version=3),
        Taken(2, 0.0, 0.0, 1, 5, version=2),
        Taken(2, 0.5, 0.5, 1, 5, version=2),
    ]
    record = step_record(7, used, seconds=2.0, now=100.0)
    line = json.loads(step_line(record, used, "run:1:{}".format, {"weight_sync_s": 0.25}))
    assert line["event"] == "step"
    assert line["step"] == 7
    assert line["reward"] == 0.5
    assert line["weight_sync_s"] == 0.25
    assert line["samples"] == 3
    assert line["weight_versions"] == ["run:1:2", "run:1:3"]
