"""Datasets that are fetched, and those in a volume of their own: what that makes of the pods."""

from typing import Any

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.preflight import preflight_pod
from gymtrain_operator.manifests.trainer import trainer_job
from gymtrain_operator.manifests.volumes import volume_claims
from gymtrain_operator.reconcile.preflight import named_objects
from tests.support.specs import smallest_run

S3 = {"source": "s3://rows/a.jsonl", "secret": {"name": "s3"}}
NEW = {"size": "5Gi", "accessModes": ["ReadWriteMany"], "storageClassName": "shared"}
CLAIM = {"claimName": "datasets"}


def run(*train: dict[str, Any], storage: dict[str, Any] = NEW, **blocks: Any) -> RunContext:
    spec = smallest_run(data={"train": list(train), "storage": storage}, **blocks)["spec"]
    return RunContext("run", "default", "uid", GymTrainingRunSpec.model_validate(spec))


def trainer_pod(context: RunContext) -> Object:
    pod: Object = trainer_job(context, 1)["spec"]["template"]["spec"]
    return pod


def fetching(context: RunContext) -> dict[str, Object]:
    containers = preflight_pod(context)["spec"]["initContainers"]
    return {made["name"]: made for made in containers if made["name"].startswith("fetch-data")}


def mount(container: Object, path: str = "/gymtrain/fetched") -> Object:
    (found,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == path)
    return dict(found)


def named(containers: list[Object], name: str) -> Object:
    (found,) = (container for container in containers if container["name"] == name)
    return found


def test_volume_to_fetch_to_is_made_for_the_run() -> None:
    (claim,) = volume_claims(run(S3), in_use=False)
    assert claim["metadata"]["name"] == "run-data"
    assert claim["metadata"]["ownerReferences"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert claim["spec"]["storageClassName"] == "shared"


def test_sources_are_fetched_before_preflight_checks_them() -> None:
    (fetch,) = fetching(run({"source": "gym://x.jsonl"}, S3)).values()
    assert fetch["command"] == ["python", "-m", "gymtrain_gym.fetch", "train-1"]
    assert not mount(fetch).get("readOnly")


def test_each_secret_is_only_in_the_container_that_fetches_with_it() -> None:
    gs = {"source": "gs://rows/b.jsonl", "secret": {"name": "gcs"}}
    public = {"source": "hf://org/name/train"}
    context = run(S3, gs, public, {**S3, "source": "s3://rows/c.jsonl"})
    assert {name: (f["command"][3:], f.get("envFrom")) for name, f in fetching(context).items()} == {
        "fetch-data-0": (["train-0", "train-3"], [{"secretRef": {"name": "s3"}}]),
        "fetch-data-1": (["train-1"], [{"secretRef": {"name": "gcs"}}]),
        "fetch-data-2": (["train-2"], None),
    }
    pod = preflight_pod(context)["spec"]
    others = [c for c in pod["containers"] + pod["initContainers"] if not c["name"].startswith("fetch-data")]
    others += trainer_pod(context)["containers"] + trainer_pod(context)["initContainers"]
    assert all("envFrom" not in container for container in others)


def test_preflight_and_trainer_only_read_what_was_fetched() -> None:
    pods = preflight_pod(run(S3))["spec"], trainer_pod(run(S3))
    readers = [named(pods[0]["containers"], "gym")]
    readers += [named(pods[1]["initContainers"], "data"), named(pods[1]["containers"], "trainer")]
    assert all(mount(reader)["readOnly"] for reader in readers)
    for pod in pods:
        volume = named(pod["volumes"], "fetched")
        assert volume["persistentVolumeClaim"] == {"claimName": "run-data"}


def test_run_has_a_folder_of_its_own_on_a_claim_that_exists() -> None:
    context = run(S3, storage=CLAIM)
    assert volume_claims(context, in_use=False) == []
    assert mount(fetching(context)["fetch-data-0"])["subPath"] == "gymtrain-data/run"
    assert ("PersistentVolumeClaim", "datasets", "spec.data.storage.claimName") in named_objects(context.spec, "run")


def test_claim_that_the_pod_has_anyway_is_named_once() -> None:
    with_source = run(S3, {"source": "pvc://datasets/x.jsonl"}, storage=CLAIM)
    with_checkpoint = run(S3, storage=CLAIM, trainer={"checkpoint": CLAIM})
    for pod in (preflight_pod(with_source)["spec"], trainer_pod(with_source), trainer_pod(with_checkpoint)):
        claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
        assert claims == ["datasets"]


def test_volume_of_a_dataset_is_mounted_where_its_rows_are_read() -> None:
    nfs = {"nfs": {"server": "files.example.com", "path": "/rows"}}
    context = run({"source": "volume://train.jsonl", "volume": nfs})
    pods = preflight_pod(context)["spec"], trainer_pod(context)
    for pod in pods:
        assert {**nfs, "name": "source-0"} in pod["volumes"]
    for container in (named(pods[0]["containers"], "gym"), named(pods[1]["containers"], "trainer")):
        assert mount(container, "/gymtrain/sources/0") == {
            "name": "source-0",
            "mountPath": "/gymtrain/sources/0",
            "readOnly": True,
        }


def test_run_without_storage_has_no_such_volume() -> None:
    context = RunContext("run", "default", "uid", GymTrainingRunSpec.model_validate(smallest_run()["spec"]))
    assert "fetched" not in str(preflight_pod(context)) + str(trainer_job(context, 1))


def test_preparation_alone_gets_its_token() -> None:
    spec = smallest_run(
        data={"prepare": {"shouldDownload": True, "tokenSecret": {"name": "hub", "key": "token"}}, "storage": NEW}
    )["spec"]
    context = RunContext("run", "default", "uid", GymTrainingRunSpec.model_validate(spec))
    pod = preflight_pod(context)["spec"]
    made = named(pod["initContainers"], "prepare-data")
    assert made["command"] == ["python", "-m", "gymtrain_gym.prepare"]
    assert not mount(made).get("readOnly")
    token = {"name": "GYMTRAIN_DATA_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert token in made["env"]
    others = [c for c in pod["containers"] + pod["initContainers"] if c is not made]
    others += trainer_pod(context)["containers"] + trainer_pod(context)["initContainers"]
    assert all(token not in container["env"] for container in others)
