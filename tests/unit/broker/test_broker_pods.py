"""The pods of sandboxes, as YAML, compared with the files in golden/.

After an intended change, record them again and read the difference:

    GYMTRAIN_UPDATE_GOLDEN=1 python -m pytest tests/unit/broker/test_broker_pods.py
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_api import labels
from gymtrain_api.sandboxes import SandboxRequest, SandboxResources, sandbox_token, token_digest
from gymtrain_broker.objects import sandbox_pod
from gymtrain_broker.objects.leases import Found, Lease, MadeFor, lease_patch
from gymtrain_broker.policy.shapes import PodShapes
from tests.unit.broker.conftest import TOKEN, settings

_FOLDER = Path(__file__).parent / "golden"

LEASE = Lease("sb-1", 1000.0, 1001.0, 600.0, 300.0, 0, Found.NONE)
REQUEST = SandboxRequest(image="task:1", task="django-1", key="k", env={"A": "b"}, resources=SandboxResources(cpu=2))

CASES: dict[str, dict[str, Any]] = {
    "restricted": {},
    "root": {
        "root": True,
        "hostUsers": False,
        "runtimeClassName": "gvisor",
        "network": {"mode": "EgressAllowed", "cidrs": ["10.0.0.0/8"]},
        "imagePullSecrets": [{"name": "registry"}],
        "imageRewrites": [{"from": "task", "to": "mirror.local/task"}],
        "resources": {"limits": {"memory": "8Gi"}},
        "template": {"spec": {"nodeSelector": {"pool": "sandboxes"}}, "metadata": {"labels": {"team": "rl"}}},
    },
}


def _pod(*, lease: bool = True, image: str = "task:1", **spec: Any) -> dict[str, Any]:
    config = settings(**spec)
    shape = PodShapes(config).of(image, REQUEST.resources if lease else None)
    return sandbox_pod.pod(
        config,
        shape.key,
        image,
        shape.body,
        "run-sb-abc",
        made_for=MadeFor.CLAIM if lease else MadeFor.POOL,
        lease=LEASE if lease else None,
        request=REQUEST if lease else None,
    )


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in pod["spec"]["containers"] if one["name"] == "sandbox")


def _values(pod: dict[str, Any]) -> dict[str, Any]:
    """The variables of its container that have a value of their own."""
    return {one["name"]: one["value"] for one in _container(pod)["env"] if "value" in one}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_is_as_recorded(case: str) -> None:
    text = yaml.safe_dump(_pod(**CASES[case]), sort_keys=True, width=120)
    file = _FOLDER / f"{case}.yaml"
    if os.environ.get("GYMTRAIN_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "see this file's docstring for how to record the new pods"


def test_the_run_owns_the_pod() -> None:
    (owner,) = _pod()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("GymTrainingRun", "run", "run-uid")


def test_the_pod_knows_only_the_digest_of_its_token() -> None:
    pod = _pod()
    token = sandbox_token(TOKEN, "run-sb-abc")
    text = str(pod)
    assert token_digest(token) in text
    assert token not in text
    assert TOKEN not in text


def test_the_environment_of_a_request_is_not_set_in_the_pod() -> None:
    assert "A" not in {one["name"] for one in _container(_pod())["env"]}


def test_a_template_changes_all_but_what_the_broker_relies_on() -> None:
    template = {
        "metadata": {"labels": {labels.RUN: "other"}},
        "spec": {
            "automountServiceAccountToken": True,
            "restartPolicy": "Always",
            "tolerations": [{"key": "x"}],
            "containers": [
                {
                    "name": "sandbox",
                    "command": ["sh"],
                    "args": ["-c"],
                    "terminationMessagePath": "/tmp/message",
                    "env": [{"name": "GYMTRAIN_SANDBOX_TOKEN_SHA256", "value": "0"}, {"name": "B", "value": "c"}],
                }
            ],
        },
    }
    pod = _pod(template=template)
    assert pod["metadata"]["labels"][labels.RUN] == "run"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["tolerations"] == [{"key": "x"}]
    assert _container(pod)["command"] == ["/gymtrain/gymtrain-sandboxd", "serve"]
    assert not {"args", "terminationMessagePath"} & set(_container(pod))
    env = _values(pod)
    assert env["B"] == "c"
    assert env["GYMTRAIN_SANDBOX_TOKEN_SHA256"] == token_digest(sandbox_token(TOKEN, "run-sb-abc"))


def test_a_reset_empties_what_outlives_the_container() -> None:
    template = {
        "spec": {
            "volumes": [
                {"name": "work", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "d"}},
            ],
            "containers": [
                {
                    "name": "sandbox",
                    "volumeMounts": [{"name": "work", "mountPath": "/work"}, {"name": "data", "mountPath": "/data"}],
                }
            ],
        }
    }
    env = _values(_pod(template=template))
    assert env["GYMTRAIN_SANDBOX_WIPE"] == "/work:/dev/shm:/dev/mqueue"
    assert env["GYMTRAIN_SANDBOX_WIPE_IPC"] == "1"


def test_the_nodes_ipc_namespace_is_never_emptied() -> None:
    env = _values(_pod(template={"spec": {"hostIPC": True}}))
    assert env["GYMTRAIN_SANDBOX_WIPE"] == ""
    assert env["GYMTRAIN_SANDBOX_WIPE_IPC"] == "0"


def _disk(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in _container(pod)["env"] if one["name"] == "GYMTRAIN_SANDBOX_DISK"]


def test_the_daemon_knows_the_limit_of_disk() -> None:
    source = {"resourceFieldRef": {"containerName": "sandbox", "resource": "limits.ephemeral-storage"}}
    template = {"spec": {"containers": [{"name": "sandbox", "env": [{"name": "GYMTRAIN_SANDBOX_DISK", "value": "1"}]}]}}
    for pod in (_pod(), _pod(template=template)):
        assert _disk(pod) == [{"name": "GYMTRAIN_SANDBOX_DISK", "valueFrom": source}]


@pytest.mark.parametrize("limit", [None, "0"])
def test_without_a_limit_the_daemon_is_told_none(limit: str | None) -> None:
    """The kubelet would give it the node's size."""
    container = {
        "name": "sandbox",
        "resources": {"limits": {"ephemeral-storage": limit}},
        "env": [{"name": "GYMTRAIN_SANDBOX_DISK", "value": "1"}],
    }
    assert _disk(_pod(template={"spec": {"containers": [container]}})) == []


def test_a_pod_made_ahead_lives_long_enough_for_a_late_lease() -> None:
    spec: dict[str, Any] = {"timeoutSeconds": 1000, "startTimeoutSeconds": 100}
    assert _pod(lease=False, **spec)["spec"]["activeDeadlineSeconds"] >= 2000
    assert _pod(**spec)["spec"]["activeDeadlineSeconds"] == 600 + 300 + 300


@pytest.mark.parametrize(
    ("spec", "cluster_has_them", "host_users"),
    [
        ({"root": True}, True, False),
        ({"root": True}, False, None),
        ({}, True, None),
        ({"root": True, "hostUsers": True}, True, True),
        ({"hostUsers": False}, False, False),
        ({"root": True, "runtimeClassName": "gvisor"}, True, None),
    ],
    ids=["root", "none there", "no root", "refused by the run", "wanted by the run", "a kernel of its own"],
)
def test_root_gets_a_user_namespace_where_the_cluster_has_them(
    spec: dict[str, Any], cluster_has_them: bool, host_users: bool | None
) -> None:
    config = replace(settings(**spec), user_namespaces=cluster_has_them)
    assert PodShapes(config).of("task:1").body["spec"].get("hostUsers") is host_users


@pytest.mark.parametrize("reuse", [False, True])
def test_the_daemon_is_mounted_where_the_cluster_has_image_volumes(reuse: bool) -> None:
    pools = [{"image": "task:1", "reuse": "Restart"}] if reuse else []
    config = replace(settings(warmPools=pools), image_volumes=True, daemon_image="r/sandbox:1", pull_policy="Always")
    spec = PodShapes(config).of("task:1").body["spec"]
    assert "initContainers" not in spec
    assert spec["volumes"] == [{"name": "gymtrain", "image": {"reference": "r/sandbox:1", "pullPolicy": "Always"}}]
    (task,) = spec["containers"]
    assert task["volumeMounts"] == [{"name": "gymtrain", "mountPath": "/gymtrain", "readOnly": True}]
    assert task["command"] == ["/gymtrain/gymtrain-sandboxd", "serve"]
    assert spec["restartPolicy"] == ("Always" if reuse else "Never")


def test_with_agent_sandbox_the_daemon_is_copied() -> None:
    """The init container makes the token's digest, too."""
    config = replace(settings(), image_volumes=True, backend="AgentSandbox")
    assert [one["name"] for one in PodShapes(config).of("task:1").body["spec"]["initContainers"]] == ["sandboxd"]


def test_only_pools_that_say_so_restart() -> None:
    pools = [{"image": "task:1", "reuse": "Restart"}, {"image": "task:2"}]
    assert _pod(lease=False, warmPools=pools)["spec"]["restartPolicy"] == "Always"
    assert _pod(lease=False, image="task:2", warmPools=pools)["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    "spec",
    [
        {"root": True},
        {"template": {"spec": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}}},
        {"template": {"spec": {"containers": [{"name": "sandbox", "securityContext": {"runAsUser": 0}}]}}},
        {"template": {"spec": {"hostIPC": True}}},
    ],
    ids=["root", "a root of the template's", "its container's", "the node's IPC"],
)
def test_a_pod_whose_state_outlives_the_container_never_restarts(spec: dict[str, Any]) -> None:
    """Root can write the pod's /etc/hosts and /etc/resolv.conf."""
    pools = [{"image": "task:1", "reuse": "Restart"}]
    assert _pod(lease=False, warmPools=pools, **spec)["spec"]["restartPolicy"] == "Never"


def test_a_lease_is_one_patch_that_fails_where_another_was_faster() -> None:
    test, *adds = lease_patch("before", LEASE, REQUEST)
    assert test == {"op": "test", "path": "/metadata/annotations/gymtrain.dev~1sandbox-claim", "value": "before"}
    assert {one["op"] for one in adds} == {"add"}
    assert adds[0]["value"] == "sb-1"
