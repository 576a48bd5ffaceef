"""Every example fits the types; the api ring applies them to a real API server."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_api.spec import GymTrainingRunSpec

README = Path(__file__).parents[3] / "README.md"
EXAMPLES = sorted((README.parent / "examples").glob("*.yaml"))


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
        trains = "withoutTraining" not in document.get("spec", {}).get("evaluation", {})
        if document["kind"] == "GymTrainingRun" and trains:
            trainer = document["spec"]["trainer"]
            config = trainer["config"]
            at_once = config["per_device_train_batch_size"] * config.get("gradient_accumulation_steps", 1)
            batch = at_once * trainer.get("nodes", 1) * trainer.get("processesPerNode", 1)
            assert batch % config["num_generations"] == 0


def _readmes_run() -> dict[str, Any]:
    (block,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    run: dict[str, Any] = yaml.safe_load(block)
    return run


def test_the_readmes_run_keeps_its_model_and_sees_tool_calls() -> None:
    spec = GymTrainingRunSpec.model_validate(_readmes_run()["spec"])
    assert spec.trainer.checkpoint is not None
    assert "save_steps" in spec.trainer.config
    # Its environment is that of examples/workplace-assistant.yaml, which says what these are for.
    assert {"--enable-auto-tool-choice", "--tool-call-parser=hermes"} <= set(spec.inference.args)


def test_the_readme_builds_before_it_installs_and_installs_before_it_applies() -> None:
    text = README.read_text()
    places = [text.index(word) for word in ("](images/README.md) has the commands", "helm install", "kubectl apply -f")]
    assert places == sorted(places)
    assert "--set imageRegistry=" in text


def test_the_readme_links_every_page() -> None:
    text = README.read_text()
    assert [page.name for page in (README.parent / "docs").glob("*.md") if f"(docs/{page.name})" not in text] == []
    assert "gtr/NAME" not in text
