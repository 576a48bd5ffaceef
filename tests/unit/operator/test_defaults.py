"""What a run is made with of the defaults of its cluster and namespace, and that it keeps it."""

from dataclasses import replace
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.defaults import parse
from gymtrain_api.runs import parse_run_config
from gymtrain_operator.manifests.objects import config_hash
from gymtrain_operator.reconcile.defaulting import keeps_defaults, new_context, objects_of_defaults
from gymtrain_operator.reconcile.observation import NamespaceDefaults
from tests.support.kueue_world import admit
from tests.support.world import DEFAULTS, World, applied

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TAINTED = {"tolerations": [GPU]}


def _world(namespace: dict[str, Any], cluster: dict[str, Any] | None = None, **blocks: Any) -> World:
    world = World(**blocks)
    world.defaults = replace(DEFAULTS, cluster=parse(cluster or {}, "defaults"))
    _change(world, namespace)
    return world


def _change(world: World, namespace: dict[str, Any], limits: tuple[str, ...] = ()) -> None:
    world.seen["namespace"] = NamespaceDefaults(parse(namespace, "spec"), required_limits=limits)


def _pods(world: World) -> dict[str, dict[str, Any]]:
    """All pod specs of the run by role."""
    found: dict[str, dict[str, Any]] = {}
    for kind in ("Deployment", "Job"):
        for manifest in world.objects.get(kind, {}).values():
            template = manifest["spec"]["template"]
            found[template["metadata"]["labels"][labels.ROLE]] = template["spec"]
    for manifest in world.objects.get("Pod", {}).values():
        if manifest["metadata"]["labels"][labels.ROLE] == "preflight":
            found["preflight"] = manifest["spec"]
    return found


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_every_pod_tolerates_the_clusters_taints() -> None:
    world = _world({}, TAINTED, sandboxes={"backend": "Pod"}).to_servers()
    pods = _pods(world)
    assert set(pods) == {"preflight", "gym", "gateway", "inference", "trainer", "broker"}
    assert all(pod["tolerations"] == [GPU] for pod in pods.values())


def test_a_runs_template_goes_over_the_defaults() -> None:
    own = {"key": "own", "operator": "Exists"}
    template = {"spec": {"tolerations": [own], "nodeSelector": {"pool": "mine"}}}
    defaults = TAINTED | {"nodeSelector": {"pool": "theirs", "zone": "a"}}
    pods = _pods(_world(defaults, trainer={"template": template}).to_servers())
    assert pods["trainer"]["tolerations"] == [own]
    assert pods["trainer"]["nodeSelector"] == {"pool": "mine", "zone": "a"}
    assert pods["inference"]["nodeSelector"] == {"pool": "theirs", "zone": "a"}


def test_each_role_gets_its_nodes() -> None:
    roles = {role: {"nodeSelector": {"for": role}} for role in ("preflight", "gym", "gateway", "inference", "trainer")}
    pods = _pods(_world({"roles": roles}).to_servers())
    assert {role: pod["nodeSelector"]["for"] for role, pod in pods.items()} == {role: role for role in roles}


def test_every_container_gets_proxy_and_certificates_also_those_that_fetch() -> None:
    defaults = {
        "proxy": {"https": "http://proxy:3128", "noProxy": ["10.0.0.0/8"]},
        "caBundle": {"configMap": "trusted", "key": "all.pem"},
        "env": [{"name": "HF_ENDPOINT", "value": "https://hub.example.com"}],
    }
    pods = _pods(_world(defaults, sandboxes={"backend": "Pod"}).to_servers())
    for pod in pods.values():
        bundle = {"name": "trusted", "items": [{"key": "all.pem", "path": "bundle.crt"}]}
        assert {"name": "ca-bundle", "configMap": bundle} in pod["volumes"]
        for container in _containers(pod):
            env = {one["name"]: one.get("value") for one in container["env"]}
            assert env["HTTPS_PROXY"] == env["https_proxy"] == "http://proxy:3128"
            assert "HTTP_PROXY" not in env
            assert {"run-gateway", ".svc", "10.0.0.0/8"} <= set(env["NO_PROXY"].split(","))
            assert env["SSL_CERT_FILE"] == "/etc/gymtrain/ca/bundle.crt"
            assert env["HF_ENDPOINT"] == "https://hub.example.com"
            assert "/etc/gymtrain/ca" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_gym_servers_call_one_another_without_the_proxy() -> None:
    """Agents with a client of their own, such as LiteLLM's, would ask it for the model server."""
    world = _world({"proxy": {"http": "http://proxy:3128"}}).to_servers()
    services = {name for name in world.objects["Service"] if name.startswith("run-gym-")}
    assert {"run-gym-math-agent", "run-gym-policy-model"} <= services
    for name in services:
        (server,) = world.objects["Deployment"][name]["spec"]["template"]["spec"]["containers"]
        env = {one["name"]: one.get("value", "") for one in server["env"]}
        assert services <= set(env["NO_PROXY"].split(","))
        assert env["NO_PROXY"] == env["no_proxy"]


def test_a_runs_variables_go_over_the_defaults() -> None:
    world = _world({"env": [{"name": "A", "value": "theirs"}]}, trainer={"env": [{"name": "A", "value": "mine"}]})
    (trainer,) = _pods(world.to_servers())["trainer"]["containers"]
    assert [one["value"] for one in trainer["env"] if one["name"] == "A"] == ["mine"]


def test_images_are_the_runs_then_the_namespaces_then_the_operators() -> None:
    images = {"images": {"gym": "theirs/gym@sha256:1", "gateway": "theirs/gateway@sha256:2"}}
    pods = _pods(_world(images, gateway={"image": "mine"}).to_servers())
    assert pods["gym"]["containers"][0]["image"] == "theirs/gym@sha256:1"
    assert pods["gateway"]["containers"][0]["image"] == "mine"
    assert pods["inference"]["containers"][0]["image"] == DEFAULTS.inference


def test_resources_are_the_runs_then_those_of_the_role() -> None:
    theirs, mine = {"requests": {"cpu": "7"}}, {"requests": {"cpu": "8"}}
    roles = {"roles": {"gateway": {"resources": theirs}, "trainer": {"resources": theirs}}}
    pods = _pods(_world(roles, trainer={"resources": mine}).to_servers())
    assert pods["gateway"]["containers"][0]["resources"] == theirs
    assert pods["trainer"]["containers"][0]["resources"] == mine
    (init,) = [one for one in pods["trainer"]["initContainers"] if one["name"] == "model"]
    assert init["resources"]["requests"]["cpu"] == "50m", "only the main container has them"


def test_new_volumes_are_of_the_default_storage_class() -> None:
    trainer = {"checkpoint": {"size": "1Gi"}}
    model = {"source": "hf://a/b", "storage": {"size": "1Gi", "storageClassName": "own"}}
    claims = _world({"storageClassName": "fast"}, trainer=trainer, model=model).to_servers().objects
    classes = {name: one["spec"]["storageClassName"] for name, one in claims["PersistentVolumeClaim"].items()}
    assert classes == {"run-checkpoints": "fast", "run-model": "own"}


def test_the_broker_reads_the_defaults_of_sandboxes() -> None:
    world = _world({"roles": {"sandbox": {"runtimeClassName": "gvisor"}}}, sandboxes={"backend": "Pod"}).to_servers()
    config = parse_run_config(world.objects["ConfigMap"]["run-run"]["data"]["run.json"])
    assert config.spec.sandboxes is not None
    assert config.spec.sandboxes.runtime_class_name == "gvisor"


def test_an_operator_that_knows_no_defaults_would_restart_nothing() -> None:
    """The release before compares these hashes with its own, which are of the spec alone."""
    blocks: dict[str, Any] = {
        "model": {"source": "hf://a/b", "storage": {"size": "1Gi"}},
        "inference": {"gpus": 1, "compileCache": {"size": "1Gi"}},
        "sandboxes": {"backend": "Pod"},
    }
    everything = TAINTED | {
        "storageClassName": "fast",
        "gpuResourceName": "amd.com/gpu",
        "roles": {"sandbox": {"runtimeClassName": "gvisor"}},
    }
    hashes = [
        {name: config_hash(one) for name, one in world.to_servers().objects["Deployment"].items()}
        for world in (World(**blocks), _world(everything, **blocks))
    ]
    assert hashes[0] == hashes[1]


# ── kept once preflight has passed ────────────────────────────────────────────────────────────────


def test_other_defaults_restart_nothing_and_reach_no_later_attempt() -> None:
    world = _world(TAINTED).to_servers()
    assert world.status.defaults is not None
    before = _pods(world)
    _change(world, {"tolerations": [{"key": "other", "operator": "Exists"}], "nodeSelector": {"pool": "new"}})
    assert [name for name in applied(world.reconcile(700, resync=False)) if "Job" not in name] == []
    world.reconcile(resync=True)
    world.objects["Job"].clear()
    world.reconcile()
    assert _pods(world) == before


def test_a_run_of_an_earlier_release_gets_none() -> None:
    world = World().to_servers()
    world.defaults = replace(DEFAULTS, cluster=parse(TAINTED | {"ttlSecondsAfterFinished": 1}, "defaults"))
    assert applied(world.reconcile(60)) == []
    assert world.status.defaults is None


def test_a_run_that_waits_in_a_queue_keeps_the_defaults_that_it_passed_preflight_with() -> None:
    world = _world(TAINTED)
    world.queue = "team"
    world.to_servers()
    assert world.status.defaults is not None
    del world.seen["namespace"]  # nobody asks it any more
    world.reconcile(5)
    assert world.status.state == "Queued"
    assert world.status.defaults is not None
    assert world.status.defaults.tolerations
    admit(world)
    world.reconcile(5)
    deployment = world.objects["Deployment"]["run-inference"]
    assert GPU in deployment["spec"]["template"]["spec"]["tolerations"]


def test_before_preflight_has_passed_other_defaults_make_another_pod() -> None:
    """Such as the toleration without which it found no node."""
    world = _world({})
    world.reconcile()
    _change(world, TAINTED)
    done = world.reconcile()
    assert [deletion.kind for deletion in done.delete] == ["Pod"]
    assert _pods(world)["preflight"]["tolerations"] == [GPU]


def test_other_default_images_are_no_reason_for_another_preflight() -> None:
    world = _world({})
    world.reconcile()
    _change(world, {"images": {"gym": "new"}, "ttlSecondsAfterFinished": 60})
    assert applied(world.reconcile()) == []


def test_the_time_to_live_is_that_of_the_defaults_as_it_was() -> None:
    world = _world({"ttlSecondsAfterFinished": 100}).to_servers()
    world.trainer_ends(0)
    world.reconcile()
    assert world.condition(ConditionType.COMPLETE).status == "True"
    _change(world, {"ttlSecondsAfterFinished": 1})
    assert not world.reconcile(50).delete_run
    assert world.reconcile(60).delete_run


def test_a_run_that_fails_its_preflight_lives_as_long() -> None:
    world = _world({"ttlSecondsAfterFinished": 100})
    world.reconcile()
    world.seen["missing"] = ("spec.x: ConfigMap y not found",)
    world.objects["Pod"].clear()
    world.reconcile()
    world.reconcile(100)
    assert world.condition(ConditionType.FAILED).reason == Reason.PREFLIGHT_ERROR
    assert world.last is not None
    assert world.last.requeue_after is not None
    assert world.reconcile(101).delete_run


def test_a_run_under_way_needs_nothing_of_its_namespace() -> None:
    world = _world({})
    assert not keeps_defaults(world.observe().run)
    assert keeps_defaults(world.to_servers().observe().run)


def test_a_bundle_that_is_not_there_is_named() -> None:
    world = _world({"caBundle": {"configMap": "trusted"}})
    (named,) = objects_of_defaults(new_context(world.observe(), world.defaults).applied)
    assert named == ("ConfigMap", "trusted", "status.defaults.caBundle.configMap")


# ── other clusters ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("defaults", "own", "limits"),
    [
        ({}, {}, {"nvidia.com/gpu": "2"}),
        ({"gpuResourceName": "amd.com/gpu"}, {}, {"amd.com/gpu": "2"}),
        (
            {"gpuResourceName": "amd.com/gpu"},
            {"gpuResourceName": "nvidia.com/mig-1g.10gb"},
            {"nvidia.com/mig-1g.10gb": "2"},
        ),
        ({}, {"gpuResourceName": ""}, None),
    ],
)
def test_gpus_are_asked_for_by_their_resource(defaults: dict[str, Any], own: dict[str, Any], limits: Any) -> None:
    gpus = {"gpus": 2, **own}
    pods = _pods(_world(defaults, trainer=gpus, inference=gpus).to_servers())
    for role in ("trainer", "inference"):
        assert pods[role]["containers"][0]["resources"].get("limits") == limits


def test_a_resource_claim_of_the_template_brings_gpus() -> None:
    claims = {"resources": {"claims": [{"name": "gpu"}]}}
    template = {
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}],
            "containers": [{"name": "trainer", **claims}],
        }
    }
    own = {"gpus": 1, "gpuResourceName": "", "template": template}
    pod = _pods(_world({}, trainer=own).to_servers())["trainer"]
    assert pod["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert "limits" not in pod["containers"][0]["resources"]


def test_where_the_cluster_assigns_users_no_pod_names_one() -> None:
    pods = _pods(_world({"userIds": "Assigned"}, sandboxes={"backend": "Pod"}).to_servers())
    for pod in pods.values():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"])
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in _containers(pod):
            names = {one["name"] for one in container["env"] if one.get("value") == "gymtrain"}
            assert names == {"USER", "LOGNAME"}, "nobody finds the name of such a user"


# ── quotas ────────────────────────────────────────────────────────────────────────────────────────


def test_where_a_quota_requires_limits_every_container_has_them() -> None:
    world = World(sandboxes={"backend": "Pod"}, inference={"resources": {"requests": {"memory": "40Gi"}}})
    _change(world, {}, ("cpu", "memory"))
    pods = _pods(world.to_servers())
    for pod in pods.values():
        for container in _containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["limits"])
    assert pods["inference"]["containers"][0]["resources"]["limits"]["memory"] == "40Gi", "of a request, the same"


def test_without_such_a_quota_nothing_is_limited() -> None:
    pods = _pods(World().to_servers())
    assert [one["name"] for pod in pods.values() for one in _containers(pod) if "limits" in one["resources"]] == []
