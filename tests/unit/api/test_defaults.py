"""Defaults of cluster and namespace: their levels, what they fill in of a spec, and what is refused."""

from typing import Any

import pytest

from gymtrain_api.crd.definition import defaults_definition
from gymtrain_api.defaults import (
    AppliedDefaults,
    InvalidDefaultsError,
    RunDefaults,
    parse,
    parse_stored,
    resolve,
    with_defaults,
)
from gymtrain_api.runs import parse_spec, parse_status
from tests.support.world import spec

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def _resolved(*levels: dict[str, Any]) -> AppliedDefaults:
    return resolve(parse(level, "defaults") for level in levels)


def _filled(defaults: dict[str, Any], **blocks: Any) -> dict[str, Any]:
    return with_defaults(parse_spec(spec(**blocks)), _resolved(defaults)).model_dump(mode="json", by_alias=True)


def test_a_namespace_goes_over_the_cluster_key_by_key() -> None:
    cluster = {"storageClassName": "slow", "nodeSelector": {"zone": "a", "os": "linux"}, "ttlSecondsAfterFinished": 60}
    found = _resolved(cluster, {"storageClassName": "fast", "nodeSelector": {"zone": "b"}})
    assert found.storage_class_name == "fast"
    assert found.node_selector == {"zone": "b", "os": "linux"}
    assert found.ttl_seconds_after_finished == 60


def test_variables_and_pull_secrets_are_merged_by_name_and_tolerations_replaced() -> None:
    cluster = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "imagePullSecrets": [{"name": "one"}],
        "tolerations": [GPU],
    }
    own = {
        "env": [{"name": "B", "value": "3"}],
        "imagePullSecrets": [{"name": "two"}],
        "tolerations": [{"key": "team", "operator": "Exists"}],
    }
    found = _resolved(cluster, own)
    assert {one.name: one.value for one in found.env} == {"A": "1", "B": "3"}
    assert [one.name for one in found.image_pull_secrets] == ["one", "two"]
    assert [one.key for one in found.tolerations] == ["team"]


def test_a_role_goes_over_what_holds_for_all_pods() -> None:
    found = _resolved(
        {
            "nodeSelector": {"pool": "cpu", "zone": "a"},
            "runtimeClassName": "runc",
            "roles": {"trainer": {"nodeSelector": {"pool": "h100"}, "tolerations": [GPU]}},
        }
    )
    assert found.pod_template("trainer") == {
        "spec": {"nodeSelector": {"pool": "h100", "zone": "a"}, "tolerations": [GPU], "runtimeClassName": "runc"}
    }
    assert found.pod_template("gym")["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "a"}


def test_workers_of_a_vllm_server_are_as_its_leader() -> None:
    found = _resolved({"roles": {"inference": {"nodeSelector": {"pool": "h100"}}}})
    assert found.pod_template("inference-worker") == found.pod_template("inference")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"tolerationz": []}, "defaults.tolerationz: Extra inputs are not permitted"),
        ({"roles": {"trainers": {}}}, "defaults.roles.trainers: Extra inputs"),
        ({"tolerations": [{"effect": "Never"}]}, "defaults.tolerations.0.effect: Input should be 'NoSchedule'"),
        ({"ttlSecondsAfterFinished": "soon"}, "defaults.ttlSecondsAfterFinished: Input should be a valid integer"),
        ({"gpuResourceName": "gpu"}, "defaults.gpuResourceName: String should match"),
        ({"caBundle": {"key": "a"}}, "defaults.caBundle.configMap: Field required"),
        ({"images": {"gym": "a b"}}, "defaults.images.gym: String should match"),
    ],
)
def test_what_does_not_fit_is_named(document: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDefaultsError, match=said.replace(".", r"\.")):
        parse(document, "defaults")


def test_a_key_of_a_later_release_is_no_reason_to_read_nothing() -> None:
    found = parse_stored({"storageClassName": "fast", "fromTheFuture": 1, "roles": {"gym": {"new": 1}}}, "spec")
    assert found == RunDefaults(storage_class_name="fast")


def test_a_spec_is_filled_in_where_it_is_open() -> None:
    defaults = {"storageClassName": "fast", "ttlSecondsAfterFinished": 60, "gpuResourceName": "amd.com/gpu"}
    found = _filled(
        defaults,
        trainer={"checkpoint": {"size": "1Gi"}, "gpus": 2},
        inference={"compileCache": {"claimName": "mine"}},
        model={"source": "hf://a/b", "storage": {"size": "1Gi", "storageClassName": "own"}},
    )
    assert found["trainer"]["checkpoint"]["storageClassName"] == "fast"
    assert found["trainer"]["gpuResourceName"] == "amd.com/gpu"
    assert found["inference"]["gpuResourceName"] is None, "it has no GPUs"
    assert found["inference"]["compileCache"]["storageClassName"] is None, "no volume is made"
    assert found["model"]["storage"]["storageClassName"] == "own"
    assert found["ttlSecondsAfterFinished"] == 60


def test_what_a_run_says_stays() -> None:
    defaults = {"ttlSecondsAfterFinished": 60, "gpuResourceName": "amd.com/gpu"}
    own = {"gpus": 1, "gpuResourceName": "nvidia.com/mig-1g.10gb"}
    found = _filled(defaults, trainer=own, inference={"gpus": 1, "gpuResourceName": ""}, ttlSecondsAfterFinished=0)
    assert found["trainer"]["gpuResourceName"] == "nvidia.com/mig-1g.10gb"
    assert found["inference"]["gpuResourceName"] == "", "a resource claim of the template brings them"
    assert found["ttlSecondsAfterFinished"] == 0


def test_sandboxes_get_theirs_below_their_own_template() -> None:
    defaults = {
        "imagePullSecrets": [{"name": "registry"}],
        "roles": {
            "sandbox": {"nodeSelector": {"pool": "sandboxes"}, "runtimeClassName": "gvisor", "tolerations": [GPU]}
        },
    }
    own = {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}, "imagePullSecrets": [{"name": "own"}]}
    found = _filled(defaults, sandboxes=own)["sandboxes"]
    assert found["template"]["spec"] == {"nodeSelector": {"pool": "sandboxes", "disk": "ssd"}, "tolerations": [GPU]}
    assert found["runtimeClassName"] == "gvisor"
    assert found["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}]


def test_without_defaults_a_spec_is_what_it_was() -> None:
    own = parse_spec(spec(trainer={"checkpoint": {"size": "1Gi"}, "gpus": 1}, sandboxes={}))
    assert with_defaults(own, AppliedDefaults()) == own


def test_a_status_keeps_defaults_and_reads_those_of_a_later_release() -> None:
    applied = resolve([parse({"tolerations": [GPU], "env": [{"name": "A", "value": ""}]}, "d")], ["memory", "cpu"])
    wire = {"tolerations": [GPU], "env": [{"name": "A", "value": ""}], "requiredLimits": ["cpu", "memory"]}
    status = parse_status({"defaults": wire | {"fromTheFuture": 1}})
    assert status.defaults == applied
    assert status.model_dump(mode="json", by_alias=True, exclude_none=True)["defaults"] == wire


def test_only_one_object_a_namespace_is_allowed() -> None:
    (version,) = defaults_definition()["spec"]["versions"]
    (rule,) = version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
    assert rule["rule"] == "self.metadata.name == 'default'"
