"""A run gives its author nothing that they lack: the chart's admission policy, judged by a real API server."""

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gymtrain_api.spec import GymTrainingRunSpec
from tests.support.apiserver import ApiServer, binary
from tests.support.chart import render
from tests.support.kubectl import Kubectl, KubectlError, eventually
from tests.support.specs import smallest_run

WITHOUT_PODS, WITH_PODS = "without-pods", "with-pods"
REFUSAL = "may not create pods in namespace"

type Object = dict[str, Any]

_POD = {"spec": {"containers": [{"name": "trainer", "securityContext": {"privileged": True}}]}}
_FROM_SECRET = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "judge"}}}
# What the run of each case sets, by the field that the refusal names.
GUARDED: dict[str, Object] = {
    "spec.serviceAccountName": {"serviceAccountName": "admin"},
    "spec.priorityClassName": {"priorityClassName": "urgent"},
    "spec.model.tokenSecret": {
        "model": {"source": "hf://org/name", "tokenSecret": {"name": "hub", "key": "token"}},
    },
    "spec.model.source": {"model": {"source": "pvc://weights/qwen"}},
    "spec.gym.image": {"gym": {"image": "mine/gym:1"}},
    "spec.gym.template": {"gym": {"template": {"spec": {"hostNetwork": True}}}},
    "spec.gym.servers.judge": {"gym": {"servers": {"judge": {"template": {"spec": {"hostPID": True}}}}}},
    "spec.gym.env KEY": {"gym": {"env": [{"name": "PLAIN", "value": "1"}, _FROM_SECRET]}},
    "spec.data.train pvc://datasets/train.jsonl": {"data": {"train": [{"source": "pvc://datasets/train.jsonl"}]}},
    "spec.data.train configmap://rows/train.jsonl": {"data": {"train": [{"source": "configmap://rows/train.jsonl"}]}},
    "spec.data.train volume://train.jsonl": {
        "data": {"train": [{"source": "volume://train.jsonl", "volume": {"nfs": {"server": "files", "path": "/"}}}]}
    },
    "spec.data.train s3://rows/train.jsonl": {
        "data": {
            "train": [{"source": "s3://rows/train.jsonl", "secret": {"name": "keys"}}],
            "storage": {"size": "1Gi"},
        }
    },
    "spec.data.validation pvc://datasets/held-out.jsonl": {
        "data": {"validation": [{"source": "pvc://datasets/held-out.jsonl"}]}
    },
    "spec.data.validation s3://rows/held-out.jsonl": {
        "data": {
            "validation": [{"source": "s3://rows/held-out.jsonl", "secret": {"name": "keys"}}],
            "storage": {"size": "1Gi"},
        }
    },
    "spec.data.prepare.tokenSecret": {
        "data": {
            "prepare": {"shouldDownload": True, "tokenSecret": {"name": "hub", "key": "token"}},
            "storage": {"size": "1Gi"},
        }
    },
    "spec.data.storage.claimName": {
        "data": {"train": [{"source": "s3://rows/train.jsonl"}], "storage": {"claimName": "theirs"}}
    },
    "spec.inference.image": {"inference": {"image": "mine/vllm:1"}},
    "spec.inference.template": {"inference": {"template": {"spec": {"hostIPC": True}}}},
    "spec.inference.compileCache.claimName": {"inference": {"compileCache": {"claimName": "theirs"}}},
    "spec.trainer.image": {"trainer": {"image": "mine/trainer:1"}},
    "spec.trainer.template": {"trainer": {"template": _POD}},
    "spec.trainer.checkpoint.claimName": {"trainer": {"checkpoint": {"claimName": "theirs"}}},
    "spec.trainer.env": {"trainer": {"env": [{"name": "PYTHONPATH", "value": "/gymtrain/checkpoints"}]}},
    "spec.trainer.push": {"trainer": {"checkpoint": {"size": "1Gi"}, "push": {"to": "s3://nodes-bucket/model"}}},
    "spec.gateway.image": {"gateway": {"image": "mine/gateway:1"}},
    "spec.gateway.template": {"gateway": {"template": {"spec": {"hostNetwork": True}}}},
    "spec.evaluation.withoutTraining.checkpointsOf": {
        "data": {"validation": [{"source": "gym://x.jsonl"}]},
        "evaluation": {"withoutTraining": {"checkpointsOf": "theirs"}},
        "trainer": {"checkpoint": {"size": "1Gi"}},
    },
    "spec.resumeFrom": {"resumeFrom": "theirs", "trainer": {"checkpoint": {"size": "1Gi"}}},
    "spec.sandboxes": {"sandboxes": {}},
}
# Fields that carry an image, a pod's settings, or the name of something that only a pod can reach.
_TELLING = re.compile(
    r"image|template|secret|service_account|priority_class|claim|resume|^env$|^source$|^push$|^volume$|^sandboxes$"
)


def _policy() -> list[Object]:
    return [manifest for manifest in render() if manifest["kind"].startswith("ValidatingAdmissionPolicy")]


@pytest.fixture(scope="module")
def policy(api_server: ApiServer, kubectl_cache: None) -> Iterator[None]:
    """The chart's policy, in force."""
    admin = Kubectl(str(api_server.kubeconfig), "default", binary("kubectl"))
    manifests = _policy()
    admin.apply(*manifests)
    yield
    for manifest in manifests:
        admin.run("delete", manifest["kind"], manifest["metadata"]["name"])


@pytest.fixture
def authors(policy: None, kubectl: Kubectl) -> Kubectl:
    """A namespace with two authors of runs, one of whom may create pods."""
    for user, resources in ((WITHOUT_PODS, "gymtrainingruns.gymtrain.dev"), (WITH_PODS, "gymtrainingruns,pods")):
        kubectl.run("create", "role", user, "--verb=get,list,create,patch,update", f"--resource={resources}")
        kubectl.run("create", "rolebinding", user, f"--role={user}", f"--user={user}")
    # A policy is in force some moments after it was written.
    run = _run(serviceAccountName="admin")
    eventually(lambda: REFUSAL in _answer(kubectl, run, WITHOUT_PODS), "the policy is in force", 60)
    return kubectl


def _run(**blocks: Any) -> Object:
    """A run that asks for nothing but what the blocks do."""
    run = smallest_run("run", data={"train": [{"source": "gym://resources_servers/x/data/train.jsonl"}]})
    for name, block in blocks.items():
        run["spec"][name] = run["spec"].get(name, {}) | block if isinstance(block, dict) else block
    return run


def _answer(kubectl: Kubectl, run: Object, user: str) -> str:
    """What the API server says of a dry run; empty where it takes it."""
    command = ("create", "--dry-run=server", "-f", "-", "--as", user)
    try:
        kubectl.run(*command, stdin=json.dumps(run))
    except KubectlError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("field", GUARDED)
def test_who_may_not_create_pods_is_refused_what_a_pod_would_give_them(authors: Kubectl, field: str) -> None:
    said = _answer(authors, _run(**GUARDED[field]), WITHOUT_PODS)
    assert f"{WITHOUT_PODS} {REFUSAL} {authors.namespace}" in said
    assert f"which is required to set: {field}. " in said


@pytest.mark.parametrize("field", GUARDED)
def test_who_may_create_pods_may_set_it(authors: Kubectl, field: str) -> None:
    assert _answer(authors, _run(**GUARDED[field]), WITH_PODS) == ""


def test_a_run_on_the_images_of_the_chart_needs_no_right_on_pods(authors: Kubectl) -> None:
    plain = _run(
        gym={"env": [{"name": "PLAIN", "value": "1"}], "servers": {"judge": {"replicas": 2}}},
        trainer={"checkpoint": {"size": "1Gi"}},
        inference={"resources": {"limits": {"memory": "4Gi"}}},
    )
    assert _answer(authors, plain, WITHOUT_PODS) == ""


def test_others_may_change_a_run_but_not_what_stands_in_for_pods(authors: Kubectl) -> None:
    authors.run("create", "-f", "-", "--as", WITH_PODS, stdin=json.dumps(_run(**GUARDED["spec.gym.template"])))

    def patch(spec: Object) -> None:
        authors.run("patch", "gtr", "run", "--type=merge", "--as", WITHOUT_PODS, "-p", json.dumps({"spec": spec}))

    patch({"suspend": True})
    with pytest.raises(KubectlError, match=r"to set: spec\.gym\.template\. "):
        patch({"gym": {"template": {"spec": {"hostPID": True}}}})
    patch({"gym": {"template": None}})


def test_the_refusal_names_every_such_setting(authors: Kubectl) -> None:
    said = _answer(authors, _run(**GUARDED["spec.gym.image"], **GUARDED["spec.sandboxes"]), WITHOUT_PODS)
    assert "spec.sandboxes, spec.gym.image" in said or "spec.gym.image, spec.sandboxes" in said


def test_no_field_of_the_types_is_forgotten() -> None:
    """A new field that carries an image, a template or the name of a Secret, a claim or an account must be guarded."""
    policies = [m for m in _policy() if m["kind"] == "ValidatingAdmissionPolicy"]
    (asks,) = [v["expression"] for m in policies for v in m["spec"]["variables"] if v["name"] == "asks"]
    guarded = {field.rstrip(".") for field in re.findall(r"'(spec\.[\w.]+)", asks)}
    assert {_base(field) for field in GUARDED} == guarded
    forgotten = {path for path in _telling(GymTrainingRunSpec, "spec") if not _covered(path, guarded)}
    assert forgotten == set()


def _base(field: str) -> str:
    """The field of a case, without the name of a server, a variable or a source."""
    return re.sub(r"^(spec\.gym\.servers)\..*", r"\1", field.split(" ")[0])


def _covered(path: str, guarded: set[str]) -> bool:
    return any(path == field or path.startswith(f"{field}.") for field in guarded)


def _telling(model: type[BaseModel], path: str) -> Iterator[str]:
    """Paths of the fields below a type whose names tell that they matter."""
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}"
        if _TELLING.search(name):
            yield here
        for part in _models(field.annotation):
            yield from _telling(part, here)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
