"""Reading what a namespace has for its runs."""

from typing import Any

import pytest

from gymtrain_api.defaults import RunDefaults
from gymtrain_kube.errors import RejectedError
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.namespace_defaults import REMEMBER_SECONDS, NamespaceReader
from tests.support.fake_kube_client import FakeKubeClient


def _object(name: str, spec: dict[str, Any]) -> Object:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}


async def test_a_namespace_without_defaults_and_quotas_has_none() -> None:
    found = await NamespaceReader(FakeKubeClient()).read("ns", 100.0)
    assert (found.defaults, found.error, found.required_limits) == (None, "", ())


async def test_an_answer_serves_for_a_few_seconds() -> None:
    cluster = FakeKubeClient()
    reader = NamespaceReader(cluster)
    await reader.read("ns", 100.0)
    cluster.put(kinds.DEFAULTS, _object("default", {"storageClassName": "fast"}))
    assert (await reader.read("ns", 100.0 + REMEMBER_SECONDS - 1)).defaults is None
    assert (await reader.read("ns", 100.0 + REMEMBER_SECONDS)).defaults == RunDefaults(storage_class_name="fast")


async def test_a_runs_first_look_reads_anew() -> None:
    cluster = FakeKubeClient()
    reader = NamespaceReader(cluster)
    await reader.read("ns", 100.0)
    cluster.put(kinds.DEFAULTS, _object("default", {"storageClassName": "fast"}))
    assert (await reader.read("ns", 100.1, afresh=True)).defaults == RunDefaults(storage_class_name="fast")
    assert (await reader.read("ns", 100.2)).defaults == RunDefaults(storage_class_name="fast")


async def test_defaults_that_can_not_be_read_are_an_error_that_names_the_key() -> None:
    cluster = FakeKubeClient()
    cluster.put(kinds.DEFAULTS, _object("default", {"ttlSecondsAfterFinished": "soon"}))
    found = await NamespaceReader(cluster).read("ns", 100.0)
    assert found.error.startswith(
        "GymTrainingDefaults default of namespace ns can't be read: spec.ttlSecondsAfterFinished: "
    )


@pytest.mark.parametrize(
    ("hard", "required"),
    [
        ({"limits.cpu": "10", "limits.memory": "1Gi"}, ("cpu", "memory")),
        ({"limits.ephemeral-storage": "1Gi"}, ("ephemeral-storage",)),
        ({"requests.cpu": "10", "pods": "5", "count/x.limits.example.com": "1"}, ()),
    ],
)
async def test_quotas_of_limits_require_them(hard: dict[str, str], required: tuple[str, ...]) -> None:
    cluster = FakeKubeClient()
    cluster.put(kinds.RESOURCE_QUOTA, _object("team", {"hard": hard}))
    assert (await NamespaceReader(cluster).read("ns", 100.0)).required_limits == required


async def test_quotas_that_may_not_be_read_keep_no_run_from_its_defaults() -> None:
    cluster = FakeKubeClient()
    cluster.fail["LIST ResourceQuota"] = RejectedError("forbidden", final=False)
    cluster.put(kinds.DEFAULTS, _object("default", {"storageClassName": "fast"}))
    found = await NamespaceReader(cluster).read("ns", 100.0)
    assert (found.defaults, found.required_limits) == (RunDefaults(storage_class_name="fast"), ())


async def test_defaults_that_may_not_be_read_are_an_error() -> None:
    """A run that is made without its cluster's tolerations and proxies would fail later, and nobody would know why."""

    class Forbidden(FakeKubeClient):
        async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
            raise RejectedError("gymtrainingdefaults is forbidden", final=False)

    found = await NamespaceReader(Forbidden()).read("ns", 100.0)
    assert found.error == "GymTrainingDefaults default of namespace ns can't be read: gymtrainingdefaults is forbidden"
