"""What holds for the manifests beyond the golden files."""

from typing import Any

import pytest
import yaml

from gymtrain_api import labels, wiring
from gymtrain_api.runs import parse_spec
from gymtrain_operator.manifests.config_maps import hosted_config
from gymtrain_operator.manifests.context import GymServers, RunContext
from gymtrain_operator.manifests.gateway import gateway_objects
from gymtrain_operator.manifests.gym import gym_objects
from gymtrain_operator.manifests.inference import inference_objects
from gymtrain_operator.manifests.preflight import preflight_hash, preflight_pod
from gymtrain_operator.manifests.trainer import trainer_job
from gymtrain_operator.manifests.volumes import volume_claims
from gymtrain_operator.reconcile.preflight import named_objects
from tests.support.world import DEFAULTS, GYM_VERDICT, UID, World, spec

GYM = GymServers(tuple(GYM_VERDICT.servers), dict(GYM_VERDICT.config))


def context(**blocks: Any) -> RunContext:
    return RunContext("run", "ns", UID, parse_spec(spec(**blocks)), DEFAULTS)


def _by_name(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


def _pods(**blocks: Any) -> list[dict[str, Any]]:
    run = context(**blocks)
    objects = [*gym_objects(run, GYM), *gateway_objects(run), *inference_objects(run)]
    deployments = [o for o in objects if o["kind"] == "Deployment"]
    return [
        *(d["spec"]["template"] for d in deployments),
        trainer_job(run, 1)["spec"]["template"],
        preflight_pod(run),
    ]


SPECS: list[dict[str, Any]] = [
    {},
    {"model": {"source": "hf://a/b", "lora": {"r": 8}}, "trainer": {"checkpoint": {"size": "1Gi"}}},
    {"model": {"source": "pvc://models/llama"}},
    {"model": {"source": "oci://image"}, "inference": {"gpus": 2}},
    {"model": {"source": "hf://a/b", "storage": {"size": "1Gi"}, "tokenSecret": {"name": "s", "key": "k"}}},
]


@pytest.mark.parametrize("blocks", SPECS)
def test_every_container_is_restricted(blocks: dict[str, Any]) -> None:
    for pod in _pods(**blocks):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("blocks", SPECS)
def test_every_mount_has_its_volume(blocks: dict[str, Any]) -> None:
    for pod in _pods(**blocks):
        volumes = [v["name"] for v in pod["spec"]["volumes"]]
        assert len(volumes) == len(set(volumes))
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            assert {m["name"] for m in container["volumeMounts"]} <= set(volumes)


def test_agents_reach_the_same_replica_always_and_trainers_spread_over_agents() -> None:
    services = _by_name(gym_objects(context(), GYM), "Service")
    affinity = {name: s["spec"].get("sessionAffinity", "None") for name, s in services.items()}
    assert affinity == {
        "run-gym-head-server": "ClientIP",
        "run-gym-policy-model": "ClientIP",
        "run-gym-math": "ClientIP",
        "run-gym-math-agent": "None",
    }


def test_an_agent_that_other_servers_call_is_sticky_too() -> None:
    servers = [s.model_copy(update={"references": ["math_agent"]}) if s.name == "math" else s for s in GYM.servers]
    services = _by_name(gym_objects(context(), GymServers(tuple(servers), GYM.config)), "Service")
    assert services["run-gym-math-agent"]["spec"]["sessionAffinity"] == "ClientIP"


def test_the_gym_config_names_services_and_keeps_secrets_unresolved() -> None:
    config: Any = hosted_config(context(), GYM)
    assert config["head_server"] == {"host": "run-gym-head-server", "port": 8000}
    model = config["policy_model"]["responses_api_models"]["vllm_model"]
    assert (model["host"], model["port"], model["api_key"]) == ("run-gym-policy-model", 8000, "${oc.env:KEY}")
    assert "host" not in GYM.config["policy_model"]["responses_api_models"]["vllm_model"], "the verdict stays as it is"


def test_the_written_config_is_plain_yaml() -> None:
    world = World().to_servers()
    text = world.objects["ConfigMap"]["run-gym"]["data"]["config.yaml"]
    assert set(yaml.safe_load(text)) == {"head_server", "policy_model", "math", "math_agent"}


def test_settings_of_one_server_go_over_those_of_all() -> None:
    everyone = {"spec": {"nodeSelector": {"pool": "cpu"}, "priorityClassName": "low"}}
    own = {"image": "math:2", "template": {"spec": {"priorityClassName": "high"}}}
    gym = {"configPaths": ["x"], "image": "gym:9", "template": everyone, "servers": {"math": own}}
    deployments = _by_name(gym_objects(context(gym=gym), GYM), "Deployment")
    math = deployments["run-gym-math"]["spec"]["template"]["spec"]
    agent = deployments["run-gym-math-agent"]["spec"]["template"]["spec"]
    assert (math["containers"][0]["image"], agent["containers"][0]["image"]) == ("math:2", "gym:9")
    assert (math["nodeSelector"], math["priorityClassName"]) == ({"pool": "cpu"}, "high")
    assert agent["priorityClassName"] == "low"


def test_a_server_with_ray_gets_shared_memory_and_the_others_do_not() -> None:
    servers = tuple(s.model_copy(update={"needs_ray": s.name == "math"}) for s in GYM.servers)
    deployments = _by_name(gym_objects(context(), GymServers(servers, GYM.config)), "Deployment")
    with_shm = [
        name
        for name, deployment in deployments.items()
        if any(v["name"] == "shm" for v in deployment["spec"]["template"]["spec"]["volumes"])
    ]
    assert with_shm == ["run-gym-math"]


def test_a_template_can_not_take_the_labels_away() -> None:
    template = {"metadata": {"labels": {labels.ROLE: "other", "team": "a"}}}
    pod = trainer_job(context(trainer={"template": template}), 1)["spec"]["template"]
    assert pod["metadata"]["labels"][labels.ROLE] == "trainer"
    assert pod["metadata"]["labels"]["team"] == "a"


@pytest.mark.parametrize("block", ["gym", "inference", "trainer", "gateway"])
def test_a_template_can_not_bring_a_service_account_token(block: str) -> None:
    template = {"spec": {"automountServiceAccountToken": True}}
    settings = {"template": template} | ({"configPaths": ["x"]} if block == "gym" else {})
    assert [pod["spec"]["automountServiceAccountToken"] for pod in _pods(**{block: settings})].count(True) == 0


def test_a_variable_of_the_user_stands_once_in_each_container_and_wins() -> None:
    own = [
        {"name": "CACHE", "value": "/c"},
        {"name": "HF_HOME", "value": "$(CACHE)/hf"},
        {"name": "CACHE", "value": "/d"},
    ]
    for pod in _pods(gym={"configPaths": ["a.yaml"], "env": own}):
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            names = [variable["name"] for variable in container["env"]]
            assert len(names) == len(set(names)), container["name"]
    (gym, *_) = preflight_pod(context(gym={"configPaths": ["a.yaml"], "env": own}))["spec"]["containers"]
    assert gym["env"][-2:] == own[1:]


def test_gpus_come_on_top_of_own_resources() -> None:
    trainer = {"gpus": 8, "processesPerNode": 8, "resources": {"limits": {"memory": "1Ti"}}}
    (container,) = trainer_job(context(trainer=trainer), 1)["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"memory": "1Ti", "nvidia.com/gpu": "8"}}


def test_vllm_on_gpus_gets_the_gpu_image_and_no_surge() -> None:
    deployment = _by_name(inference_objects(context(inference={"gpus": 1})), "Deployment")["run-inference"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "inference-gpu:1"
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("trainer", "image"), [({"gpus": 1}, "trainer-gpu:1"), ({}, "trainer:1"), ({"gpus": 1, "image": "own:1"}, "own:1")]
)
def test_a_trainer_on_gpus_gets_the_gpu_image_in_preflight_too(trainer: dict[str, Any], image: str) -> None:
    run = context(trainer=trainer)
    (container,) = trainer_job(run, 1)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image
    assert [c["image"] for c in preflight_pod(run)["spec"]["containers"] if c["name"] == "trainer"] == [image]


def test_runs_that_share_a_claim_write_below_their_names() -> None:
    job = trainer_job(context(trainer={"checkpoint": {"claimName": "shared"}}), 1)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == wiring.CHECKPOINT_DIR]
    assert mount["subPath"] == "run"


def test_a_claim_of_several_datasets_is_one_volume() -> None:
    train = [{"source": "pvc://d/a.jsonl"}, {"source": "pvc://d/b.jsonl"}, {"source": "configmap://c/x"}]
    pod = preflight_pod(context(data={"train": train}))
    sources = [v for v in pod["spec"]["volumes"] if v["name"].startswith("source-")]
    assert len(sources) == 2
    gym = pod["spec"]["containers"][0]
    mounts = {m["mountPath"]: m["name"] for m in gym["volumeMounts"] if m["mountPath"].startswith(wiring.SOURCES_DIR)}
    assert mounts == {
        "/gymtrain/sources/0": "source-0",
        "/gymtrain/sources/1": "source-0",
        "/gymtrain/sources/2": "source-1",
    }


def test_validation_data_is_mounted_beside_the_training_data_and_has_to_exist() -> None:
    data = {
        "train": [{"source": "pvc://d/a.jsonl"}],
        "validation": [{"source": "pvc://d/b.jsonl"}, {"source": "configmap://held-out/x"}],
    }
    run = context(data=data)
    for pod in (preflight_pod(run)["spec"], trainer_job(run, 1)["spec"]["template"]["spec"]):
        mounts = {
            mount["mountPath"]: mount["name"]
            for container in (*pod["containers"], *pod["initContainers"])
            for mount in container["volumeMounts"]
            if mount["mountPath"].startswith(wiring.SOURCES_DIR)
        }
        assert mounts == {
            "/gymtrain/sources/0": "source-0",
            "/gymtrain/sources/validation-0": "source-0",
            "/gymtrain/sources/validation-1": "source-1",
        }
    assert named_objects(run.spec, "run")[-1] == ("ConfigMap", "held-out", "spec.data.validation[1].source")


def test_the_preflight_pod_takes_no_sidecars_and_no_gpu_nodes() -> None:
    gym = {
        "configPaths": ["x"],
        "template": {"spec": {"imagePullSecrets": [{"name": "s"}], "containers": [{"name": "mesh", "image": "m"}]}},
    }
    env = [{"name": "HTTPS_PROXY", "value": "p"}]
    trainer = {"template": {"spec": {"nodeSelector": {"gpu": "h100"}, "containers": [{"name": "trainer", "env": env}]}}}
    pod = preflight_pod(context(gym=gym, trainer=trainer))["spec"]
    assert [c["name"] for c in pod["containers"]] == ["gym", "trainer", "inference"]
    assert "nodeSelector" not in pod
    assert pod["imagePullSecrets"] == [{"name": "s"}]
    assert env[0] in pod["containers"][1]["env"]


@pytest.mark.parametrize(
    ("inference", "image"),
    [({}, "inference:1"), ({"gpus": 2}, "inference-gpu:1"), ({"gpus": 2, "image": "our/vllm:3"}, "our/vllm:3")],
)
def test_preflight_asks_the_vllm_that_will_serve_and_takes_no_gpu(inference: dict[str, Any], image: str) -> None:
    (container,) = [c for c in preflight_pod(context(inference=inference))["spec"]["containers"] if c["image"] == image]
    assert container["command"] == ["python", "-m", "gymtrain_vllm.preflight"]
    assert wiring.MODEL_DIR in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert "nvidia.com/gpu" not in str(container["resources"])


def test_preflight_of_vllm_gets_what_its_template_needs_to_run_anywhere() -> None:
    env = [{"name": "VLLM_PLUGINS", "value": "other"}]
    mounts = [{"name": "parsers", "mountPath": "/parsers"}]
    template: dict[str, Any] = {
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [{"name": "parsers", "configMap": {"name": "parsers"}}],
            "containers": [{"name": "inference", "env": env, "volumeMounts": mounts}, {"name": "mesh", "image": "m"}],
        }
    }
    pod = preflight_pod(context(inference={"template": template}))["spec"]
    assert "nodeSelector" not in pod
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert template["spec"]["volumes"][0] in pod["volumes"]
    assert [c["name"] for c in pod["containers"]] == ["gym", "trainer", "inference"]
    assert env[0] in pod["containers"][2]["env"]
    assert mounts[0] in pod["containers"][2]["volumeMounts"]


def _compile_cache(**blocks: Any) -> tuple[dict[str, Any], list[Any]]:
    """Where a vLLM pod has the volume for what it compiles, and the claims of the pod."""
    pod = _by_name(inference_objects(context(**blocks)), "Deployment")["run-inference"]["spec"]["template"]["spec"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == "/gymtrain/compile-cache"]
    sources = [(v["name"], v["persistentVolumeClaim"]) for v in pod["volumes"] if "persistentVolumeClaim" in v]
    claims = {name: source["claimName"] for name, source in sources}
    return mount | {"name": claims[mount["name"]]}, sorted(claims.values())


def test_what_vllm_compiles_is_kept_on_a_volume_of_the_run_that_goes_with_it() -> None:
    blocks: dict[str, Any] = {"inference": {"compileCache": {"size": "2Gi", "storageClassName": "fast"}}}
    mount, _ = _compile_cache(**blocks)
    assert mount == {"name": "run-compile-cache", "mountPath": "/gymtrain/compile-cache"}
    (claim,) = volume_claims(context(**blocks), in_use=True)
    assert claim["metadata"]["name"] == "run-compile-cache"
    assert claim["metadata"]["ownerReferences"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"] == {"storage": "2Gi"}


def test_runs_share_a_claim_for_what_vllm_compiles_and_see_nothing_else_on_it() -> None:
    cache = {"compileCache": {"claimName": "team"}}
    mount, _ = _compile_cache(inference=cache)
    assert mount == {"name": "team", "mountPath": "/gymtrain/compile-cache", "subPath": "gymtrain-compile-cache"}
    assert volume_claims(context(inference=cache), in_use=True) == []
    named = named_objects(context(inference=cache).spec, "run")
    assert named == [("PersistentVolumeClaim", "team", "spec.inference.compileCache.claimName")]


@pytest.mark.parametrize(
    "more",
    [
        {"model": {"source": "pvc://team/llama"}},
        {"model": {"source": "hf://a/b", "lora": {"r": 8}}, "trainer": {"checkpoint": {"claimName": "team"}}},
    ],
)
def test_a_claim_that_is_the_models_or_the_checkpoints_too_is_one_volume(more: dict[str, Any]) -> None:
    mount, claims = _compile_cache(inference={"compileCache": {"claimName": "team"}}, **more)
    assert mount["name"] == "team"
    assert claims == ["team"]


def test_volumes_of_two_templates_may_have_one_name() -> None:
    def template(container: str, claim: str) -> dict[str, Any]:
        volume = {"name": "cache", "persistentVolumeClaim": {"claimName": claim}}
        mounts = [{"name": "cache", "mountPath": "/cache"}]
        return {
            "template": {"spec": {"volumes": [volume], "containers": [{"name": container, "volumeMounts": mounts}]}}
        }

    def claims(of_inference: str) -> list[str]:
        parts = {"trainer": template("trainer", "a"), "inference": template("inference", of_inference)}
        pod = preflight_pod(context(**parts))["spec"]
        claim = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "cache" in v["name"]}
        return [claim[m["name"]] for c in pod["containers"] for m in c["volumeMounts"] if m["mountPath"] == "/cache"]

    assert claims("b") == ["a", "b"]
    assert claims("a") == ["a", "a"]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"data": {"train": [{"source": "gym://other"}]}}, True),
        ({"gym": {"configPaths": ["y"]}}, True),
        ({"trainer": {"config": {"max_steps": 3}}}, True),
        ({"trainer": {"template": {"spec": {"imagePullSecrets": [{"name": "s"}]}}}}, True),
        ({"inference": {"replicas": 4}}, False),
        ({"inference": {"args": ["--max-num-seqs=8"]}}, True),
        ({"inference": {"template": {"spec": {"imagePullSecrets": [{"name": "s"}]}}}}, True),
        ({"gateway": {"replicas": 4, "maxInFlight": 9}}, False),
        ({"rollout": {"mode": "Verify"}}, True),
        ({"suspend": True}, False),
        ({"backoffLimit": 7}, False),
        ({"startupDeadlineSeconds": 70}, False),
    ],
)
def test_preflight_is_done_again_when_what_it_checks_changed(change: dict[str, Any], again: bool) -> None:
    assert (preflight_hash(context(**change)) != preflight_hash(context())) is again


def test_a_server_name_too_long_for_a_label_still_gets_pods() -> None:
    name = "a_very_long_name_of_a_server_that_somebody_chose_without_thinking_of_labels"
    server = GYM.servers[1].model_copy(update={"name": name})
    objects = gym_objects(context(), GymServers((server,), {name: GYM.config["math"]}))
    for manifest in objects:
        assert len(manifest["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


def test_preflight_fetches_a_hubs_config_and_tokenizer_where_no_volume_keeps_the_model() -> None:
    world = World(model={"source": "hf://org/model"})
    world.reconcile()
    (init,) = world.preflight_pod["spec"]["initContainers"]
    assert init["command"][-2:] == ["gymtrain_trainer.fetch", "--without-weights"]
    shared = World(model={"source": "hf://org/model", "storage": {"size": "1Gi"}})
    shared.reconcile()
    (init,) = shared.preflight_pod["spec"]["initContainers"]
    assert init["command"][-1] == "gymtrain_trainer.fetch"


def _trainers(**trainer: Any) -> list[dict[str, Any]]:
    """The trainer's containers, of preflight first."""
    run = context(model={"source": "hf://a/b", "tokenSecret": {"name": "hub", "key": "token"}}, trainer=trainer)
    pods = (preflight_pod(run), trainer_job(run, 1)["spec"]["template"])
    return [c for pod in pods for c in pod["spec"]["containers"] if c["name"] == "trainer"]


def test_the_trainers_environment_is_that_of_its_preflight_and_the_authors_word_counts() -> None:
    key = {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "reporters", "key": "wandb"}}}
    for container in _trainers(env=[key, {"name": "HF_TOKEN", "value": "mine"}]):
        assert key in container["env"]
        assert [one for one in container["env"] if one["name"] == "HF_TOKEN"] == [{"name": "HF_TOKEN", "value": "mine"}]


def test_the_keys_of_a_push_reach_only_trainer_and_preflight_under_names_of_their_own() -> None:
    push = {"to": "hf://org/name", "secret": {"name": "hub-write"}}
    keys = [{"prefix": "GYMTRAIN_PUSH_", "secretRef": {"name": "hub-write"}}]
    blocks: dict[str, Any] = {"trainer": {"checkpoint": {"size": "1Gi"}, "push": push}}
    assert [container["envFrom"] for container in _trainers(**blocks["trainer"])] == [keys, keys]
    others = [c for pod in _pods(**blocks) for c in pod["spec"]["containers"] if c["name"] != "trainer"]
    assert others
    assert not any("envFrom" in container for container in others)
    assert not any(
        "envFrom" in container for container in _trainers(checkpoint={"size": "1Gi"}, push={"to": "s3://b/p"})
    )


_TOKEN = "run-token"


def _mounting(pod: dict[str, Any], volume: str) -> list[str]:
    """Names of the containers of a pod that mount a volume."""
    every = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    return [one["name"] for one in every if volume in {mount["name"] for mount in one["volumeMounts"]}]


def test_the_token_of_vllms_control_routes_is_in_vllm_and_the_trainer_and_in_no_init_container() -> None:
    run = context(model={"source": "oci://image"}, inference={"nodes": 2})
    (groups,) = (o for o in inference_objects(run) if o["kind"] == "LeaderWorkerSet")
    leader, worker = (groups["spec"]["leaderWorkerTemplate"][f"{part}Template"] for part in ("leader", "worker"))
    assert _mounting(leader, _TOKEN) == ["inference"]
    assert _mounting(worker, _TOKEN) == []
    assert _mounting(trainer_job(run, 1)["spec"]["template"], _TOKEN) == ["trainer"]
    assert _mounting(preflight_pod(run), _TOKEN) == []
    assert not any(_mounting(o["spec"]["template"], _TOKEN) for o in gym_objects(run, GYM) if o["kind"] == "Deployment")


def test_the_token_is_made_by_chance_and_named_by_the_runs_uid() -> None:
    (secret,) = (o for o in inference_objects(context()) if o["kind"] == "Secret")
    assert secret["stringData"] == {"token": ""}
    assert (
        secret["metadata"]["name"]
        != inference_objects(RunContext("run", "ns", "another", context().spec))[0]["metadata"]["name"]
    )


def test_a_trainer_starts_in_a_run_whose_vllm_was_made_before_there_was_a_token() -> None:
    pod = trainer_job(context(), 1)["spec"]["template"]["spec"]
    (volume,) = (v for v in pod["volumes"] if v["name"] == _TOKEN)
    assert volume["secret"]["optional"] is True


def test_images_of_others_share_no_writable_folder_but_the_one_that_they_fill() -> None:
    """What they left below HOME, the next container's Python would run, with its token and its keys."""
    fetched = {"train": [{"source": "s3://rows/a.jsonl"}], "storage": {"size": "1Gi"}}
    run = context(model={"source": "oci://image"}, gym={"configPaths": ["a.yaml"], "image": "theirs"}, data=fetched)
    (vllm,) = (o["spec"]["template"] for o in inference_objects(run) if o["kind"] == "Deployment")
    for pod in (trainer_job(run, 1)["spec"]["template"], vllm, preflight_pod(run)):
        every = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        writable = {one["name"]: {m["name"] for m in one["volumeMounts"] if not m.get("readOnly")} for one in every}
        theirs = {one["name"] for one in every if one["image"] in {"theirs", "image"}}
        assert theirs, "the test looks at the right pods"
        for name in theirs:
            assert all(writable[name].isdisjoint(writable[other]) for other in set(writable) - {name}), name
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert set().union(*writable.values()) <= volumes
