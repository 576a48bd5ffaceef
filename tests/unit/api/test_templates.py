"""Templates of another shape than a pod's: what the user reads."""

from typing import Any

import pytest

from gymtrain_api.runs import InvalidRunError, parse_spec
from tests.support.specs import smallest_run

LIST = "must be a list, with `-` before each item"
MAPPING = "must be a mapping"


def _mistakes(**blocks: Any) -> str:
    with pytest.raises(InvalidRunError) as raised:
        parse_spec(smallest_run(**blocks)["spec"])
    return str(raised.value)


@pytest.mark.parametrize(
    ("template", "mistake"),
    [
        ({"spec": {"containers": {"name": "trainer"}}}, f".spec.containers: {LIST}"),
        ({"spec": {"containers": ["trainer"]}}, f".spec.containers[0]: {MAPPING}"),
        ({"spec": {"containers": [{"name": "trainer", "env": {"A": "1"}}]}}, f".spec.containers[0].env: {LIST}"),
        ({"spec": {"initContainers": [{"volumeMounts": "x"}]}}, f".spec.initContainers[0].volumeMounts: {LIST}"),
        ({"spec": {"volumes": {}}}, f".spec.volumes: {LIST}"),
        ({"spec": [{"nodeSelector": {}}]}, f".spec: {MAPPING}"),
        ({"spec": None}, f".spec: {MAPPING}"),
        ({"metadata": {"labels": ["a=b"]}}, f".metadata.labels: {MAPPING}"),
        ({"metadata": "x"}, f".metadata: {MAPPING}"),
    ],
)
def test_the_field_of_another_shape_is_named(template: dict[str, Any], mistake: str) -> None:
    assert _mistakes(trainer={"template": template}) == f"spec.trainer.template{mistake}"


@pytest.mark.parametrize("block", ["gateway", "inference", "sandboxes"])
def test_the_template_of_every_block_is_looked_at(block: str) -> None:
    assert _mistakes(**{block: {"template": {"spec": []}}}) == f"spec.{block}.template.spec: {MAPPING}"


def test_templates_of_single_gym_servers_are_looked_at() -> None:
    gym = {"configPaths": ["a.yaml"], "template": {"spec": 1}, "servers": {"math": {"template": {"metadata": 1}}}}
    wanted = f"spec.gym.template.spec: {MAPPING}; spec.gym.servers.math.template.metadata: {MAPPING}"
    assert _mistakes(gym=gym) == wanted


def test_a_template_of_a_pods_shape_is_taken_whatever_it_holds() -> None:
    container = {"name": "trainer", "env": [{"name": "A"}], "ports": None, "resources": {"limits": 3}}
    template = {
        "metadata": {"labels": {"env": "x"}, "annotations": None},
        "spec": {"containers": [container], "volumes": None, "tolerationz": 1, "nodeSelector": {"volumes": "fast"}},
    }
    assert parse_spec(smallest_run(trainer={"template": template})["spec"]).trainer.template == template


@pytest.mark.parametrize(
    ("template", "where"),
    [
        ({"spec": {"volumes": [{"name": "shm", "$patch": "replace"}]}}, ".spec.volumes[0]"),
        ({"spec": {"containers": [{"name": "trainer", "env": [{"$patch": "merge"}]}]}}, ".spec.containers[0].env[0]"),
        ({"spec": {"$patch": "delete", "tolerations": []}}, ".spec"),
        ({"spec": {"tolerations": [{"$patch": "delete"}]}}, ".spec.tolerations[0]"),
    ],
)
def test_a_directive_that_merging_does_not_know_is_named(template: dict[str, Any], where: str) -> None:
    assert _mistakes(trainer={"template": template}).startswith(
        f"spec.trainer.template{where}.$patch: only `delete` is known"
    )


def test_items_of_merged_lists_may_be_deleted() -> None:
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "$patch": "delete"}]}]}}
    assert parse_spec(smallest_run(trainer={"template": template})["spec"]).trainer.template == template
