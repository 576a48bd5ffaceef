"""Strategic merge of the user's template."""

from typing import Any

import pytest

from gymtrain_api.merge import merge

BASE: dict[str, Any] = {
    "spec": {
        "containers": [
            {
                "name": "gym",
                "image": "gym:1",
                "command": ["python", "-m", "x"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
}


def _container(patch: dict[str, Any]) -> dict[str, Any]:
    merged = merge(BASE, {"spec": {"containers": [{"name": "gym", **patch}]}})
    (container,) = merged["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_a_container_of_the_same_name_is_merged() -> None:
    container = _container({"image": "gym:2"})
    assert container["image"] == "gym:2"
    assert container["command"] == ["python", "-m", "x"]


def test_a_container_of_another_name_is_added() -> None:
    merged = merge(BASE, {"spec": {"containers": [{"name": "sidecar", "image": "s"}]}})
    assert [c["name"] for c in merged["spec"]["containers"]] == ["gym", "sidecar"]


def test_a_variable_of_the_same_name_is_replaced_whole() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = _container({"env": [{"name": "A", "valueFrom": source}, {"name": "C", "value": "3"}]})["env"]
    assert env == [{"name": "A", "valueFrom": source}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]


def test_a_volume_changes_its_source() -> None:
    claim = {"name": "scratch", "persistentVolumeClaim": {"claimName": "fast"}}
    assert merge(BASE, {"spec": {"volumes": [claim]}})["spec"]["volumes"] == [claim]


def test_a_volume_keeps_its_source_and_gets_a_limit() -> None:
    merged = merge(BASE, {"spec": {"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]}})
    assert merged["spec"]["volumes"] == [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]


def test_mounts_are_matched_by_path() -> None:
    mounts = _container(
        {"volumeMounts": [{"name": "other", "mountPath": "/scratch"}, {"name": "x", "mountPath": "/x"}]}
    )
    assert mounts["volumeMounts"] == [{"name": "other", "mountPath": "/scratch"}, {"name": "x", "mountPath": "/x"}]


def test_lists_without_a_key_are_replaced() -> None:
    assert _container({"command": ["sh"]})["command"] == ["sh"]


def test_null_takes_a_field_away() -> None:
    assert "command" not in _container({"command": None})


def test_an_item_can_be_deleted() -> None:
    env = _container({"env": [{"name": "A", "$patch": "delete"}]})["env"]
    assert env == [{"name": "B", "value": "2"}]


@pytest.mark.parametrize("patch", [{}, {"spec": {}}])
def test_an_empty_template_changes_nothing(patch: dict[str, Any]) -> None:
    assert merge(BASE, patch) == BASE


def test_neither_side_is_changed() -> None:
    patch = {"spec": {"containers": [{"name": "gym", "env": [{"name": "A", "value": "9"}]}]}}
    merge(BASE, patch)["spec"]["containers"][0]["env"].append("x")
    assert len(BASE["spec"]["containers"][0]["env"]) == 2
    assert patch["spec"]["containers"][0]["env"] == [{"name": "A", "value": "9"}]
