"""Every example, and every run that a page shows, fits the types; the api ring applies them to a real API server."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_api import labels
from gymtrain_api.defaults import parse as parse_defaults
from gymtrain_api.merge import merge
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_cli.init import Wanted, manifest
from tests.support.pages import yaml_blocks

README = Path(__file__).parents[3] / "README.md"
DOCS = README.parent / "docs"
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
    (block,) = yaml_blocks(README)
    run: dict[str, Any] = yaml.safe_load(block)
    return run


def test_the_readmes_run_keeps_its_model_and_sees_tool_calls() -> None:
    spec = GymTrainingRunSpec.model_validate(_readmes_run()["spec"])
    assert spec.trainer.checkpoint is not None
    assert "save_steps" in spec.trainer.config
    # Its environment is that of examples/workplace-assistant.yaml, which says what these are for.
    assert {"--enable-auto-tool-choice", "--tool-call-parser=hermes"} <= set(spec.inference.args)


def _blocks(path: Path) -> list[Any]:
    """What the YAML blocks of a page hold, but for values of the chart."""
    blocks = [block for block in yaml_blocks(path) if not block.startswith("# values.yaml")]
    return [document for block in blocks for document in yaml.safe_load_all(block) if document]


def _spec(document: dict[str, Any]) -> dict[str, Any]:
    """The spec of a document: a run's own, or a page's part of one, over the README's."""
    if "kind" in document:
        spec: dict[str, Any] = document["spec"]
        return spec
    part = document.get("spec", document)
    return merge(_readmes_run()["spec"], part)


def _runs(path: Path) -> list[dict[str, Any]]:
    """The runs of a page, and the parts of runs."""
    shown = [document for document in _blocks(path) if document.get("kind", labels.KIND) == labels.KIND]
    return [document for document in shown if "defaults" not in document]  # which are the chart's value


SHOWN = {path.stem: shown for path in sorted(DOCS.glob("*.md")) if (shown := _runs(path))}


@pytest.mark.parametrize("page", SHOWN)
def test_what_a_page_shows_of_runs_fits_the_types(page: str) -> None:
    for document in SHOWN[page]:
        GymTrainingRunSpec.model_validate(_spec(document))


def test_what_the_page_of_defaults_shows_fits_the_types() -> None:
    blocks = _blocks(DOCS / "defaults.md")
    shown = [document["spec"] for document in blocks if document.get("kind") == labels.DEFAULTS_KIND]
    shown += [document["defaults"] for document in blocks if "defaults" in document]
    assert len(shown) == 3
    for document in shown:
        parse_defaults(document, "defaults")


def test_the_tutorials_run_is_what_init_writes_but_for_data_and_evaluation() -> None:
    (run,) = _blocks(DOCS / "tutorial.md")
    (config,) = run["spec"]["gym"]["configPaths"]
    written = yaml.safe_load(manifest(Wanted([config], run["spec"]["model"]["source"])))
    assert {"data", "evaluation"} < run["spec"].keys()
    chosen = {key: run["spec"][key] for key in ("data", "evaluation")}
    assert run == written | {"spec": written["spec"] | chosen}


def test_the_readme_builds_before_it_installs_and_installs_before_it_applies() -> None:
    text = README.read_text()
    places = [text.index(word) for word in ("](images/README.md) has the commands", "helm install", "kubectl apply -f")]
    assert places == sorted(places)
    assert "--set imageRegistry=" in text


def test_the_readme_links_every_page() -> None:
    text = README.read_text()
    assert [page.name for page in (README.parent / "docs").glob("*.md") if f"(docs/{page.name})" not in text] == []
    assert "gtr/NAME" not in text
