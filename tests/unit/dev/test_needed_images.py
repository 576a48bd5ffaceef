"""Which images an example's run takes."""

import pytest

from dev.images.dockerfiles import discover, needed, select
from dev.report import DevError
from dev.settings import REPOSITORY

OPERATOR_AND_RUN = {"operator", "gateway", "gym", "inference", "trainer", "runtime", "python-build"}


def _built(example: str) -> set[str]:
    return {image.name for image in select(discover(), needed(REPOSITORY / example))}


def test_the_quickstart_needs_no_sandbox_and_no_task() -> None:
    assert _built("examples/quickstart.yaml") == OPERATOR_AND_RUN | {"model-smollm2"}


def test_an_example_with_sandboxes_needs_broker_daemon_and_its_tasks() -> None:
    built = _built("examples/swe/swe.yaml")
    assert {"broker", "sandbox", "swe-base", "gym-swe"} | OPERATOR_AND_RUN <= built
    assert any(name.startswith("swe-requests") for name in built)


def test_a_model_from_a_hub_needs_no_image() -> None:
    assert _built("examples/gpu-single-node.yaml") == OPERATOR_AND_RUN


def test_an_example_that_is_not_there_is_refused() -> None:
    with pytest.raises(DevError, match=r"nothing\.yaml"):
        needed(REPOSITORY / "examples/nothing.yaml")


def test_every_example_of_the_swe_agent_names_the_image_that_can_run_it() -> None:
    texts = {path.name: path.read_text() for path in (REPOSITORY / "examples").rglob("*.yaml")}
    using = [name for name, text in texts.items() if "configPaths: [responses_api_agents/mini_swe_agent_2/" in text]
    assert len(using) == 2
    assert [name for name in using if "    image: gymtrain/gym-swe:dev" not in texts[name]] == []
