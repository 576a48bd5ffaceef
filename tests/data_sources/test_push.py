"""spec.trainer.push to s3://, gs:// and az://, on emulators of the stores, in the process that pushes."""

from pathlib import Path

import pytest

from gymtrain_trainer.pushing import Pushed, run_push
from tests.data_sources.conftest import Store
from tests.unit.trainer.test_trainer_push import environment, made

pytestmark = pytest.mark.data_sources

SECONDS = 60


def test_a_model_is_pushed_to_a_bucket(tmp_path: Path, store: Store) -> None:
    url = f"{store.scheme}://rows/models/math"
    made(tmp_path, url)
    environ = environment(tmp_path, **store.secret)
    assert run_push("--check", seconds=SECONDS, environ=environ) == Pushed(True, "can be written")
    assert not [key for key in store.contents() if key.startswith("models/")], "the check leaves nothing"
    assert run_push(seconds=SECONDS, environ=environ) == Pushed(True, url)
    there = {key: body for key, body in store.contents().items() if key.startswith("models/")}
    assert there.keys() == {f"models/math/{name}" for name in ("README.md", "config.json", "model.safetensors")}
    assert there["models/math/model.safetensors"] == b"weights"


def test_a_bucket_that_is_not_there_is_refused(tmp_path: Path, store: Store) -> None:
    made(tmp_path, f"{store.scheme}://nowhere/models/math")
    pushed = run_push("--check", seconds=SECONDS, environ=environment(tmp_path, **store.secret))
    assert pushed.refused, pushed.said


def test_keys_that_are_missing_are_refused(tmp_path: Path, s3: Store) -> None:
    made(tmp_path, "s3://rows/models/math")
    environ = environment(tmp_path, AWS_ENDPOINT_URL=s3.secret["AWS_ENDPOINT_URL"])
    pushed = run_push("--check", seconds=SECONDS, environ=environ | {"AWS_EC2_METADATA_DISABLED": "true"})
    assert pushed.refused, pushed.said
