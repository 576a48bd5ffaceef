"""A run gives its author nothing that they lack: the chart's admission policy, judged by a real API server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from gymtrain_api.spec import GymTrainingRunSpec
from tests.support.apiserver import ApiServer, binary
from tests.support.chart import render
from tests.support.kubectl import Kubectl, KubectlError, eventually
from tests.support.specs import smallest_run

WITHOUT_PODS, WITH_PODS, ONLY_PODS, WITH_A_SECRET = "without-pods", "with-pods", "only-pods", "with-a-secret"
REFUSAL = "may not create pods in namespace"
_RBAC = "rbac.authorization.k8s.io"
CLOSED = "runs of this cluster may not set"

EXAMPLES = Path(__file__).parents[2] / "examples"

type Object = dict[str, Any]

_POD = {"spec": {"containers": [{"name": "trainer", "command": ["sh"]}]}}
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
    "spec.gym.template": {"gym": {"template": {"spec": {"schedulerName": "theirs"}}}},
    "spec.gym.egress": {"gym": {"egress": {"cidrs": ["10.0.0.0/8"]}}},
    "spec.gym.servers.judge": {"gym": {"servers": {"judge": {"template": {"spec": {"dnsPolicy": "Default"}}}}}},
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
    "spec.inference.template": {"inference": {"template": {"spec": {"schedulerName": "theirs"}}}},
    "spec.inference.compileCache.claimName": {"inference": {"compileCache": {"claimName": "theirs"}}},
    "spec.trainer.image": {"trainer": {"image": "mine/trainer:1"}},
    "spec.trainer.template": {"trainer": {"template": _POD}},
    "spec.trainer.checkpoint.claimName": {"trainer": {"checkpoint": {"claimName": "theirs"}}},
    "spec.trainer.env": {"trainer": {"env": [{"name": "PYTHONPATH", "value": "/gymtrain/checkpoints"}]}},
    "spec.trainer.push": {"trainer": {"checkpoint": {"size": "1Gi"}, "push": {"to": "s3://nodes-bucket/model"}}},
    "spec.gateway.image": {"gateway": {"image": "mine/gateway:1"}},
    "spec.gateway.template": {"gateway": {"template": {"spec": {"schedulerName": "theirs"}}}},
    "spec.evaluation.withoutTraining.checkpointsOf": {
        "data": {"validation": [{"source": "gym://x.jsonl"}]},
        "evaluation": {"withoutTraining": {"checkpointsOf": "theirs"}},
        "trainer": {"checkpoint": {"size": "1Gi"}},
    },
    "spec.resumeFrom": {"resumeFrom": "theirs", "trainer": {"checkpoint": {"size": "1Gi"}}},
    "spec.sandboxes": {"sandboxes": {}},
    "spec.tracing": {
        "tracing": {"endpoint": "http://collector:4318", "headersSecret": {"name": "otlp", "key": "headers"}}
    },
}
# Fields that carry an image, a pod's settings, or the name of something that only a pod can reach.
_TELLING = re.compile(
    r"image|template|egress|secret|service_account|priority_class|claim|resume|^env$|^source$|^push$|^volume$|^sandboxes$"
)


def _policy(*values: str) -> list[Object]:
    return [manifest for manifest in render(*values) if manifest["kind"].startswith("ValidatingAdmissionPolicy")]


@pytest.fixture(scope="module")
def policy(api_server: ApiServer, kubectl_cache: None) -> Iterator[None]:
    """The chart's policy, in force."""
    admin = Kubectl(str(api_server.kubeconfig), "default", binary("kubectl"))
    manifests = _policy()
    admin.apply(*manifests)
    yield
    for manifest in manifests:
        admin.run("delete", manifest["kind"], manifest["metadata"]["name"])


@pytest.fixture(scope="module")
def authors(policy: None, api_server: ApiServer) -> Kubectl:
    """A namespace with authors of runs. All but one may create pods; of these one may read all Secrets and act as all
    ServiceAccounts, too, as the role edit may, and one may read one Secret."""
    kubectl = Kubectl(str(api_server.kubeconfig), "authors", binary("kubectl"))
    kubectl.run("create", "namespace", kubectl.namespace)
    runs = _rights("gymtrain.dev", "gymtrainingruns", "get", "list", "create", "patch", "update")
    pods = _rights("", "pods", "create")
    one_secret = _rights("", "secrets", "get") | {"resourceNames": ["keys"]}
    for user, rules in {
        WITHOUT_PODS: [runs],
        ONLY_PODS: [runs, pods],
        WITH_A_SECRET: [runs, pods, one_secret],
        WITH_PODS: [runs, pods, _rights("", "secrets", "get"), _rights("", "serviceaccounts", "impersonate")],
    }.items():
        role: Object = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": user}}
        bound: Object = {"roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": user}}
        bound |= {"subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}]}
        kubectl.apply(role | {"kind": "Role", "rules": rules}, role | {"kind": "RoleBinding"} | bound)
    # A policy is in force some moments after it was written.
    run = _run(serviceAccountName="admin")
    host = _run(gym={"template": {"spec": {"hostNetwork": True}}})
    eventually(lambda: REFUSAL in _answer(kubectl, run, WITHOUT_PODS), "the policy is in force", 60)
    eventually(lambda: "impersonate" in _answer(kubectl, run, ONLY_PODS), "that of credentials is", 60)
    eventually(lambda: CLOSED in _answer(kubectl, host, WITH_PODS), "that of templates is", 60)
    return kubectl


def _rights(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def _run(name: str = "run", **blocks: Any) -> Object:
    """A run that asks for nothing but what the blocks do."""
    run = smallest_run(name, data={"train": [{"source": "gym://resources_servers/x/data/train.jsonl"}]})
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
    authors.run(
        "create", "-f", "-", "--as", WITH_PODS, stdin=json.dumps(_run("changed", **GUARDED["spec.gym.template"]))
    )

    def patch(spec: Object) -> None:
        authors.run("patch", "gtr", "changed", "--type=merge", "--as", WITHOUT_PODS, "-p", json.dumps({"spec": spec}))

    patch({"suspend": True})
    with pytest.raises(KubectlError, match=r"to set: spec\.gym\.template\. "):
        patch({"gym": {"template": {"spec": {"dnsPolicy": "Default"}}}})
    patch({"gym": {"template": None}})


def test_the_refusal_names_every_such_setting(authors: Kubectl) -> None:
    said = _answer(authors, _run(**GUARDED["spec.gym.image"], **GUARDED["spec.sandboxes"]), WITHOUT_PODS)
    assert "spec.sandboxes, spec.gym.image" in said or "spec.gym.image, spec.sandboxes" in said


_IN_TEMPLATES: dict[str, tuple[Object, str]] = {
    "the node's files": (
        {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}},
        "spec.trainer.template.spec.volumes: hostPath",
    ),
    "a token of the ServiceAccount": (
        {
            "spec": {
                "volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            }
        },
        "spec.trainer.template.spec.volumes: projected.serviceAccountToken",
    ),
    "the node's network": ({"spec": {"hostNetwork": True}}, "spec.trainer.template.spec.hostNetwork"),
    "the node's processes": ({"spec": {"hostPID": True}}, "spec.trainer.template.spec.hostPID"),
    "a port of the node": (
        {"spec": {"containers": [{"name": "trainer", "ports": [{"containerPort": 1, "hostPort": 1}]}]}},
        "spec.trainer.template.spec.containers: ports.hostPort",
    ),
    "all rights on the node": (
        {"spec": {"containers": [{"name": "trainer", "securityContext": {"privileged": True}}]}},
        "spec.trainer.template.spec.containers: securityContext.privileged",
    ),
    "all rights on the node, for an init container": (
        {"spec": {"initContainers": [{"name": "mine", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}},
        "spec.trainer.template.spec.initContainers: securityContext.capabilities",
    ),
    "a node past the scheduler": ({"spec": {"nodeName": "control-plane"}}, "spec.trainer.template.spec.nodeName"),
    "no seccomp": (
        {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
        "spec.trainer.template.spec.securityContext.seccompProfile",
    ),
    "none of gymtrain's security context": (
        {"spec": {"containers": [{"name": "trainer", "securityContext": None}]}},
        "spec.trainer.template.spec.containers: securityContext",
    ),
}


@pytest.mark.parametrize("what", _IN_TEMPLATES)
def test_a_template_may_not_set_what_the_chart_keeps_closed(authors: Kubectl, what: str) -> None:
    template, named = _IN_TEMPLATES[what]
    said = _answer(authors, _run(trainer={"template": template}), WITH_PODS)
    assert f"{CLOSED} {named}" in said
    assert "admissionPolicy.templateFields" in said


@pytest.mark.parametrize("block", ["gym", "inference", "gateway", "sandboxes"])
def test_templates_of_all_blocks_are_held_to_it(authors: Kubectl, block: str) -> None:
    blocks: Object = {block: {"template": {"spec": {"hostIPC": True}}}}
    run = _run(**blocks)
    assert f"{CLOSED} spec.{block}.template.spec.hostIPC" in _answer(authors, run, WITH_PODS)


def test_the_template_of_one_gym_server_is_held_to_it(authors: Kubectl) -> None:
    run = _run(gym={"servers": {"judge": {"template": {"spec": {"hostIPC": True}}}}})
    assert f"{CLOSED} spec.gym.servers.judge.template.spec.hostIPC" in _answer(authors, run, WITH_PODS)


@pytest.mark.parametrize("datasets", ["train", "validation"])
def test_the_volume_of_a_dataset_is_held_to_it(authors: Kubectl, datasets: str) -> None:
    dataset = {"source": "volume://rows.jsonl", "volume": {"hostPath": {"path": "/etc"}}}
    run = _run(data={datasets: [dataset], **({} if datasets == "train" else {"train": [{"source": "gym://x.jsonl"}]})})
    assert f"{CLOSED} spec.data.{datasets}.volume: hostPath" in _answer(authors, run, WITH_PODS)


def test_a_template_may_set_what_pods_need(authors: Kubectl) -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "securityContext": {"fsGroup": 1000, "supplementalGroups": [100]},
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "keys", "projected": {"sources": [{"secret": {"name": "keys"}}]}},
                {"name": "old", "$patch": "delete"},
            ],
            "containers": [
                {
                    "name": "trainer",
                    "env": [_FROM_SECRET],
                    "ports": [{"containerPort": 9000}],
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    "securityContext": {"readOnlyRootFilesystem": False},
                }
            ],
        },
    }
    assert _answer(authors, _run(trainer={"template": template}), WITH_PODS) == ""


def test_a_template_that_was_there_stays_when_others_change_the_run(authors: Kubectl) -> None:
    """An administrator may have closed a field since."""
    spec = {"template": {"spec": {"hostNetwork": True}}}
    bindings = [m for m in _policy() if m["kind"] == "ValidatingAdmissionPolicyBinding"]
    (binding,) = [m for m in bindings if m["metadata"]["name"].endswith("-templates")]
    authors.run("delete", binding["kind"], binding["metadata"]["name"])
    try:
        eventually(lambda: not _answer(authors, _run(gym=spec), WITH_PODS), "the policy is gone", 60)
        authors.run("create", "-f", "-", "--as", WITH_PODS, stdin=json.dumps(_run("old", gym=spec)))
    finally:
        authors.apply(binding)
    eventually(lambda: CLOSED in _answer(authors, _run(gym=spec), WITH_PODS), "the policy is back", 60)
    authors.run("patch", "gtr", "old", "--type=merge", "--as", WITH_PODS, "-p", '{"spec": {"suspend": true}}')


def test_the_chart_opens_fields(authors: Kubectl) -> None:
    opened = "admissionPolicy.templateFields.volume={emptyDir,hostPath}"
    (policy,) = [
        m for m in _policy(opened) if m["metadata"]["name"].endswith("-templates") and "Binding" not in m["kind"]
    ]
    (closed,) = [
        m for m in _policy() if m["metadata"]["name"] == policy["metadata"]["name"] and m["kind"] == policy["kind"]
    ]
    run = _run(trainer={"template": _IN_TEMPLATES["the node's files"][0]})
    authors.apply(policy)
    try:
        eventually(lambda: not _answer(authors, run, WITH_PODS), "hostPath is open", 60)
    finally:
        authors.apply(closed)
    eventually(lambda: CLOSED in _answer(authors, run, WITH_PODS), "and closed again", 60)


_SECRETS_IN_TEMPLATES: dict[str, Object] = {
    "volumes": {"volumes": [{"name": "v", "secret": {"secretName": "keys"}}]},
    "projected volumes": {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "keys"}}]}}]},
    "variables": {"containers": [{"name": "trainer", "env": [_FROM_SECRET]}]},
    "variables of init containers": {"initContainers": [{"name": "mine", "env": [_FROM_SECRET]}]},
    "all keys": {"containers": [{"name": "trainer", "envFrom": [{"secretRef": {"name": "keys"}}]}]},
    "imagePullSecrets": {"imagePullSecrets": [{"name": "keys"}]},
}
_NAMED_SECRETS: dict[str, Object] = {
    "spec.model.tokenSecret": {"model": {"source": "hf://org/name", "tokenSecret": {"name": "keys", "key": "token"}}},
    "spec.gym.env": {"gym": {"env": [_FROM_SECRET]}},
    "spec.trainer.env": {"trainer": {"env": [_FROM_SECRET]}},
    "spec.trainer.push.secret": {
        "trainer": {"checkpoint": {"size": "1Gi"}, "push": {"to": "s3://bucket/model", "secret": {"name": "keys"}}}
    },
    "spec.data.train": {
        "data": {
            "train": [{"source": "s3://rows/train.jsonl", "secret": {"name": "keys"}}],
            "storage": {"size": "1Gi"},
        }
    },
    "spec.data.validation": {
        "data": {
            "validation": [{"source": "s3://rows/held-out.jsonl", "secret": {"name": "keys"}}],
            "storage": {"size": "1Gi"},
        }
    },
    "spec.data.prepare.tokenSecret": {
        "data": {
            "prepare": {"shouldDownload": True, "tokenSecret": {"name": "keys", "key": "token"}},
            "storage": {"size": "1Gi"},
        }
    },
    "spec.sandboxes.imagePullSecrets": {"sandboxes": {"imagePullSecrets": [{"name": "keys"}]}},
    **{f"template: {where}": {"trainer": {"template": {"spec": pod}}} for where, pod in _SECRETS_IN_TEMPLATES.items()},
}


@pytest.mark.parametrize("place", _NAMED_SECRETS)
def test_a_run_names_only_secrets_that_its_author_may_read(authors: Kubectl, place: str) -> None:
    run = _run(**_NAMED_SECRETS[place])
    said = _answer(authors, run, ONLY_PODS)
    assert f"{ONLY_PODS} may not read Secrets in namespace {authors.namespace} that this run names, of: keys." in said
    assert _answer(authors, run, WITH_PODS) == ""


def test_the_right_to_read_one_secret_is_enough_for_it(authors: Kubectl) -> None:
    two = [_FROM_SECRET, {"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": "others", "key": "judge"}}}]
    assert _answer(authors, _run(gym={"env": two[:1]}), WITH_A_SECRET) == ""
    assert "may not read Secrets" in _answer(authors, _run(gym={"env": two}), WITH_A_SECRET)


def test_no_secret_of_many_goes_unasked(authors: Kubectl) -> None:
    """The API server lets an expression ask only so often."""
    same = [_FROM_SECRET | {"name": f"KEY_{number}"} for number in range(16)]
    assert _answer(authors, _run(gym={"env": same}), WITH_A_SECRET) == ""
    last = {"name": "LAST", "valueFrom": {"secretKeyRef": {"name": "others", "key": "judge"}}}
    assert "may not read Secrets" in _answer(authors, _run(gym={"env": [*same[:-1], last]}), WITH_A_SECRET)
    assert "more than 16 Secrets" in _answer(authors, _run(gym={"env": [*same, last]}), WITH_A_SECRET)


@pytest.mark.parametrize(
    "named",
    [
        {"serviceAccountName": "admin"},
        {"trainer": {"template": {"spec": {"serviceAccountName": "admin"}}}},
        {"sandboxes": {"template": {"spec": {"serviceAccountName": "admin"}}}},
    ],
)
def test_a_run_uses_only_service_accounts_that_its_author_may_act_as(authors: Kubectl, named: Object) -> None:
    said = _answer(authors, _run(**named), ONLY_PODS)
    assert f"{ONLY_PODS} may not act as (impersonate) ServiceAccounts in namespace {authors.namespace}" in said
    assert "of: admin." in said
    assert _answer(authors, _run(**named), WITH_PODS) == ""


def test_others_may_change_a_run_that_names_secrets(authors: Kubectl) -> None:
    run = _run("theirs", serviceAccountName="admin", gym={"env": [_FROM_SECRET]})
    authors.run("create", "-f", "-", "--as", WITH_PODS, stdin=json.dumps(run))
    authors.run("patch", "gtr", "theirs", "--type=merge", "--as", ONLY_PODS, "-p", '{"spec": {"suspend": true}}')


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_set_nothing_that_is_closed(authors: Kubectl, example: Path) -> None:
    for document in yaml.safe_load_all(example.read_text()):
        if document and document["kind"] == "GymTrainingRun":
            document["metadata"].pop("namespace", None)
            assert _answer(authors, document, WITH_PODS) == ""


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
