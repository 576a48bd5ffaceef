"""Every example fits the types; the api ring applies them to a real API server."""

from pathlib import Path

import pytest
import yaml

from gymtrain_api.spec import GymTrainingRunSpec

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_the_types(path: Path) -> None:
    runs = [d for d in yaml.safe_load_all(path.read_text()) if d["kind"] == "GymTrainingRun"]
    assert [run["metadata"]["name"] for run in runs] == [path.stem]
    GymTrainingRunSpec.model_validate(runs[0]["spec"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_readme_lists_an_example(path: Path) -> None:
    assert f"({path.name})" in (path.parent / "README.md").read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_batch_holds_whole_groups(path: Path) -> None:
    """GRPO compares the answers to one question, so a step takes all of them."""
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "GymTrainingRun":
            trainer = document["spec"]["trainer"]
            config = trainer["config"]
            batch = config["per_device_train_batch_size"] * trainer.get("nodes", 1) * trainer.get("processesPerNode", 1)
            assert batch % config["num_generations"] == 0
