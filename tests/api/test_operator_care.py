"""What the operator does to objects on a real API server: no more than it must, and nothing to those of others."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.labels import FIELD_MANAGER, ROLE
from tests.support.kubectl import PATIENCE, Kubectl, KubectlError, eventually
from tests.support.operator import OperatorProcess
from tests.support.policies import lets_in
from tests.support.specs import played_run


@pytest.fixture
def operator(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One operator, without election."""
    with OperatorProcess(operator_kubeconfig, tmp_path / "operator.log") as process:
        yield process


def _training(kubectl: Kubectl, run: str) -> None:
    eventually(lambda: kubectl.get("gtr", run).get("status", {}).get("state") == "Training", f"{run} trains", PATIENCE)


def _deployments(kubectl: Kubectl) -> dict[str, Any]:
    """Pod template and generation of each Deployment."""
    return {d["metadata"]["name"]: (d["metadata"]["generation"], d["spec"]["template"]) for d in kubectl.list("deploy")}


def _patch(kubectl: Kubectl, run: str, spec: dict[str, Any]) -> None:
    kubectl.run("patch", "gtr", run, "--type=merge", "-p", json.dumps({"spec": spec}))


def test_another_release_with_other_images_restarts_nothing_that_runs(
    runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with OperatorProcess(operator_kubeconfig, tmp_path / "old.log"):
        runs.apply(played_run("long-one"))
        _training(runs, "long-one")
        before = _deployments(runs), runs.list("jobs")[0]["metadata"]["uid"]
    images = ("--image-gym=new:2", "--image-gateway=new:2", "--image-inference=new:2", "--image-trainer=new:2")
    with OperatorProcess(operator_kubeconfig, tmp_path / "new.log", *images) as operator:
        step = runs.get("gtr", "long-one")["status"]["progress"]["step"]
        eventually(
            lambda: runs.get("gtr", "long-one")["status"]["progress"]["step"] > step + 1,
            "the new one reports",
            PATIENCE,
        )
        assert (_deployments(runs), runs.list("jobs")[0]["metadata"]["uid"]) == before
        assert operator.errors() == {}


def test_scrapers_that_are_named_in_the_middle_are_let_in_and_restart_nothing(
    runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    def policies() -> set[str]:
        return {one["metadata"]["name"] for one in runs.list("networkpolicies")}

    with OperatorProcess(operator_kubeconfig, tmp_path / "old.log"):
        runs.apply(played_run("long-one"))
        _training(runs, "long-one")
        before, fences = _deployments(runs), policies()
    scrapers = '--scrapers=[{"namespaceSelector": {"matchLabels": {"team": "sre"}}}]'
    with OperatorProcess(operator_kubeconfig, tmp_path / "new.log", scrapers):
        eventually(lambda: policies() == fences | {"long-one-metrics"}, "scrapers are let in", PATIENCE)
        assert _deployments(runs) == before
    with OperatorProcess(operator_kubeconfig, tmp_path / "without.log"):
        eventually(lambda: policies() == fences, "and no longer", PATIENCE)
        assert _deployments(runs) == before


def test_metrics_tell_of_each_run_also_after_a_restart_and_until_it_is_deleted(
    runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    def complete(operator: OperatorProcess) -> float | None:
        labels = f'condition="Complete",namespace="{runs.namespace}",run="told",status="true"'
        return operator.metrics().get(f"gymtrain_run_status_condition{{{labels}}}")

    with OperatorProcess(operator_kubeconfig, tmp_path / "first.log") as operator:
        runs.apply(played_run("told"))
        runs.wait_condition("told", "Complete", PATIENCE)
        eventually(lambda: complete(operator) == 1.0, "the end is told", PATIENCE)
        assert operator.metrics()["gymtrain_operator_leader"] == 1.0
    with OperatorProcess(operator_kubeconfig, tmp_path / "second.log") as operator:
        eventually(lambda: complete(operator) == 1.0, "and is by the next process", PATIENCE)
        runs.run("delete", "gtr", "told")
        eventually(lambda: complete(operator) is None, "a run that is gone is told of no longer", PATIENCE)


def test_an_upgrade_in_the_middle_changes_no_image_of_any_pod(
    runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with OperatorProcess(operator_kubeconfig, tmp_path / "old.log"):
        runs.apply(played_run("long-one"))
        _training(runs, "long-one")
        before = _images(runs, "long-one")
        (trainer,) = runs.pods("long-one", role="trainer")
    parts = ("gym", "gateway", "inference", "inference-gpu", "trainer", "broker", "sandbox")
    with OperatorProcess(operator_kubeconfig, tmp_path / "new.log", *(f"--image-{part}=new:2" for part in parts)):
        failed = ("--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Failed"}}')
        runs.run("patch", "pod", trainer["metadata"]["name"], *failed)
        _patch(runs, "long-one", {"gateway": {"maxInFlight": 7}})  # the Deployment is written anew
        eventually(lambda: runs.pods("long-one", role="trainer", attempt="2"), "the next attempt is there", 90)
        gateways = ("deployment", "long-one-gateway")
        eventually(lambda: runs.get(*gateways)["metadata"]["generation"] > 1, "the gateway is replaced", 60)
        assert _images(runs, "long-one") == before
        recorded = runs.get("gtr", "long-one")["status"]["images"]
        assert "new:2" not in recorded.values()
        assert recorded["trainer"] == trainer["spec"]["containers"][0]["image"]


def _images(kubectl: Kubectl, run: str) -> dict[str, set[str]]:
    """Images of the run's pods by role and container, init containers among them."""
    found: dict[str, set[str]] = {}
    for pod in kubectl.pods(run):
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            found.setdefault(f"{pod['metadata']['labels'][ROLE]}/{container['name']}", set()).add(container["image"])
    return found


def test_a_preflight_that_prints_32_mib_costs_the_operator_little_and_the_others_nothing(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    process, before = operator.process.pid, operator.resident_mb()
    runs.apply(*(played_run(f"chatty-{number}") for number in range(4)))
    for number in range(4):
        runs.wait_condition(f"chatty-{number}", "Complete", PATIENCE)
    assert operator.peak_mb() - before < 60
    step = runs.get("gtr", "long-one")["status"]["progress"]["step"]
    eventually(lambda: runs.get("gtr", "long-one")["status"]["progress"]["step"] > step, "it goes on", PATIENCE)
    assert (operator.process.poll(), operator.process.pid) == (None, process)


def test_replicas_change_without_new_pods_of_the_old_ones(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    old = {pod["metadata"]["uid"] for pod in runs.pods("long-one", role="inference")}
    _patch(runs, "long-one", {"inference": {"replicas": 2}})
    eventually(lambda: len(runs.pods("long-one", role="inference")) == 2, "a second vLLM pod is there", PATIENCE)
    assert old < {pod["metadata"]["uid"] for pod in runs.pods("long-one", role="inference")}
    eventually(
        lambda: runs.condition("long-one", "InferenceReady")["message"] == "vLLM: all 2 pods are ready",
        "both ready",
        PATIENCE,
    )


def test_new_resources_of_one_server_replace_its_pods_only(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    before = _deployments(runs)
    _patch(runs, "long-one", {"gym": {"servers": {"agent": {"resources": {"requests": {"cpu": "7m"}}}}}})

    def changed() -> set[str]:
        return {name for name, state in _deployments(runs).items() if state != before[name]}

    eventually(lambda: changed(), "a Deployment changed", PATIENCE)
    assert changed() == {"long-one-gym-agent"}


def test_a_deleted_service_comes_back(runs: Kubectl, operator: OperatorProcess) -> None:
    """Services aren't watched: the next look at the run's objects finds it missing, within half a minute."""
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    runs.run("delete", "service", "long-one-inference")
    eventually(
        lambda: [s for s in runs.list("services") if s["metadata"]["name"] == "long-one-inference"], "back", PATIENCE
    )


def test_a_policy_whose_label_somebody_took_gets_it_back(runs: Kubectl, operator: OperatorProcess) -> None:
    """Without it the operator doesn't find the policy, and its name is taken."""
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    runs.run("label", "networkpolicy", "long-one-training", "gymtrain.dev/run-")
    found = "gymtrain.dev/run=long-one"
    eventually(
        lambda: "long-one-training" in {one["metadata"]["name"] for one in runs.list("networkpolicies", found)},
        "it is found again",
        PATIENCE,
    )
    _training(runs, "long-one")


def test_gym_servers_are_fenced_off_from_vllm_and_the_trainer(runs: Kubectl, operator: OperatorProcess) -> None:
    """The policies as the API server stores them, judged with the labels that the pods really have."""
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    policies = runs.list("networkpolicies")
    pods = {p["metadata"]["labels"]["gymtrain.dev/role"]: p["metadata"]["labels"] for p in runs.pods("long-one")}
    inner, others = {"inference", "trainer"}, {"gym", "gateway", "preflight"}
    assert pods.keys() == inner | others
    for target in inner:
        reached_by = {source for source in pods if lets_in(policies, pods[source], pods[target])}
        assert reached_by == {"gateway", "inference", "trainer"}, target
    for target in others:
        assert all(lets_in(policies, pods[source], pods[target]) for source in pods), target
        assert not lets_in(policies, {"app": "somebody-else"}, pods[target]), target


def test_a_deployment_edited_by_hand_is_recorded_as_such(runs: Kubectl, operator: OperatorProcess) -> None:
    """What the plan goes by at a resync: the API server names the editor and the pod template."""
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    assert _editors(runs, "long-one-gateway") == set()
    runs.run("set", "image", "deployment/long-one-gateway", "gateway=other:1")
    assert _editors(runs, "long-one-gateway") == {"kubectl-set"}


def _editors(kubectl: Kubectl, deployment: str) -> set[str]:
    found = kubectl.run("get", "deployment", deployment, "-o", "json", "--show-managed-fields")
    return {
        entry["manager"]
        for entry in json.loads(found)["metadata"]["managedFields"]
        if "f:template" in entry["fieldsV1"].get("f:spec", {}) and entry["manager"] != FIELD_MANAGER
    }


def test_an_object_of_somebody_else_under_a_name_of_ours_is_left_alone_and_named(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken-run"}, "data": {"mine": "yes"}}
    runs.apply(mine)
    runs.apply(played_run("taken"))
    eventually(
        lambda: "taken-run exists already" in runs.condition("taken", "Progressing").get("message", ""),
        "told",
        PATIENCE,
    )
    found = runs.get("configmap", "taken-run")
    assert found["data"] == {"mine": "yes"}
    assert "ownerReferences" not in found["metadata"]
    runs.run("delete", "configmap", "taken-run")
    runs.wait_condition("taken", "Complete", PATIENCE)


def test_a_template_that_makes_no_valid_pod_fails_the_run_in_the_api_servers_words(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    template = {"spec": {"tolerations": [{"key": "a", "operator": "Maybe"}]}}
    run = played_run("odd")
    run["spec"]["gym"]["template"] = template
    runs.apply(run)
    runs.wait_condition("odd", "Failed", PATIENCE)
    failed = runs.condition("odd", "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "tolerations" in failed["message"]
    assert "Maybe" in failed["message"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("inference", ".spec.template.spec.tolerationz: field not declared in schema"),  # a Deployment: with HTTP 500
        ("trainer", 'unknown field "spec.template.spec.tolerationz"'),  # a Job: only where it is asked to say so
    ],
)
def test_a_template_with_an_unknown_field_fails_the_run_and_no_pod_stays(
    runs: Kubectl, operator: OperatorProcess, part: str, words: str
) -> None:
    runs.apply(played_run("misspelt", **{part: {"template": {"spec": {"tolerationz": []}}}}))
    runs.wait_condition("misspelt", "Failed", PATIENCE)
    failed = runs.condition("misspelt", "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert words in failed["message"]
    eventually(lambda: runs.list("jobs") == runs.list("deploy") == [], "servers and trainer are gone", PATIENCE)


def test_a_mistake_in_a_change_is_told_and_the_training_goes_on(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    before = _deployments(runs), runs.list("jobs")[0]["metadata"]["uid"]
    _patch(runs, "long-one", {"inference": {"template": {"spec": {"tolerationz": []}}}})
    words = "tolerationz: field not declared in schema"
    eventually(lambda: words in runs.condition("long-one", "Progressing").get("message", ""), "told", PATIENCE)
    assert (_deployments(runs), runs.list("jobs")[0]["metadata"]["uid"]) == before
    _patch(runs, "long-one", {"inference": {"template": None}})
    _training(runs, "long-one")


def test_a_variable_that_the_operator_sets_too_is_the_users(runs: Kubectl, operator: OperatorProcess) -> None:
    run = played_run("long-one")
    mine = {"name": "HF_HOME", "value": "/models"}
    run["spec"]["gym"]["env"] = [mine]
    runs.apply(run)
    _training(runs, "long-one")
    (server,) = runs.get("deployment", "long-one-gym-head-server")["spec"]["template"]["spec"]["containers"]
    assert [variable for variable in server["env"] if variable["name"] == "HF_HOME"] == [mine]


def test_a_refusal_that_passes_is_waited_for(runs: Kubectl, operator: OperatorProcess) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    runs.apply(quota)
    # Here no controller counts what is used.
    counted = json.dumps({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    runs.run("patch", "resourcequota", "none", "--subresource=status", "--type=merge", "-p", counted)
    runs.apply(played_run("patient"))
    eventually(
        lambda: "exceeded quota" in runs.condition("patient", "Progressing").get("message", ""), "told", PATIENCE
    )
    runs.run("delete", "resourcequota", "none")
    runs.wait_condition("patient", "Complete", PATIENCE)


@pytest.fixture
def no_jobs(runs: Kubectl) -> Iterator[Callable[[], None]]:
    """Makes a policy of the cluster deny Jobs in the test's namespace, until the test or its end takes it away."""
    name = f"no-jobs-{runs.namespace}"
    group = {"apiVersion": "admissionregistration.k8s.io/v1"}
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    policy = group | {
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "here", "expression": f"request.namespace == '{runs.namespace}'"}],
            "validations": [{"expression": "false", "message": "the team's budget is spent"}],
        },
    }
    binding = group | {
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "probe"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "none"}]}
    probe = json.dumps(job | {"spec": {"template": {"spec": pod}}})

    def denies() -> bool:
        try:
            runs.run("create", "--dry-run=server", "-f", "-", stdin=probe)
        except KubectlError as error:
            return "budget is spent" in str(error)
        return False

    def begin() -> None:
        runs.apply(policy, binding)
        eventually(denies, "the policy is at work", 60)

    yield begin
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        runs.run("delete", kind, name, "--ignore-not-found")


def _lift(kubectl: Kubectl) -> None:
    kubectl.run("delete", "validatingadmissionpolicybinding", f"no-jobs-{kubectl.namespace}")


def _told_of_the_policy(kubectl: Kubectl, run: str) -> None:
    words = "denied request: the team's budget is spent"
    eventually(lambda: words in kubectl.condition(run, "Progressing").get("message", ""), "told", 60)
    assert kubectl.condition(run, "Failed")["status"] == "False"


def test_a_policy_that_denies_the_first_trainer_is_told_and_waited_for(
    runs: Kubectl, operator: OperatorProcess, no_jobs: Callable[[], None]
) -> None:
    no_jobs()
    runs.apply(played_run("denied"))
    _told_of_the_policy(runs, "denied")
    _lift(runs)
    runs.wait_condition("denied", "Complete", 120)


def test_a_policy_that_denies_the_next_trainer_ends_no_run_that_has_trained(
    runs: Kubectl, operator: OperatorProcess, no_jobs: Callable[[], None]
) -> None:
    runs.apply(played_run("long-one"))
    _training(runs, "long-one")
    no_jobs()
    (trainer,) = runs.pods("long-one", role="trainer")
    failed = ("--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Failed"}}')
    runs.run("patch", "pod", trainer["metadata"]["name"], *failed)
    _told_of_the_policy(runs, "long-one")
    _lift(runs)
    eventually(lambda: runs.pods("long-one", role="trainer", attempt="2"), "the next attempt is there", 120)


def test_a_run_that_is_applied_anew_at_once_trains_with_objects_of_its_own(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    run = played_run("again", sandboxes={"backend": "Pod"})
    runs.apply(run)
    eventually(lambda: runs.list("jobs"), "its trainer is made", 90)
    runs.run("delete", "gtr", "again", "--wait=false")
    eventually(lambda: not runs.list("gtr"), "it is gone", 60, every=0.1)
    runs.apply(run)
    uid = runs.get("gtr", "again")["metadata"]["uid"]

    def owned() -> bool:
        found = runs.list("jobs,secrets,serviceaccounts,roles,rolebindings")
        owners = [one["metadata"].get("ownerReferences", [{}])[0].get("uid") for one in found]
        return owners.count(uid) == 6 and set(owners) <= {uid, None}  # two Secrets: the broker's and vLLM's

    eventually(owned, "all that it needs is its own, and nothing is left of the first", 120)
    (token,) = (one for one in runs.list("secrets") if one["metadata"]["name"].startswith("again-broker"))
    deployment = runs.get("deployment", "again-broker")["spec"]["template"]["spec"]
    assert [v["secret"]["secretName"] for v in deployment["volumes"] if "secret" in v] == [token["metadata"]["name"]]


def test_events_tell_the_way_of_a_run(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(played_run("told"))
    runs.wait_condition("told", "Complete", PATIENCE)
    expected = {"PreflightPassed", "TransportChosen", "Training", "TrainingCompleted"}

    def reasons() -> set[str]:
        return {e["reason"] for e in runs.list("events") if e["involvedObject"]["kind"] == "GymTrainingRun"}

    eventually(lambda: expected <= reasons(), "the events are there", PATIENCE)


def test_nothing_of_the_operator_stays_in_the_run_but_its_status_and_its_record(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    """The record is what tells a run that has ended where its status is lost (decision 19)."""
    run = played_run("clean")
    runs.apply(run)
    runs.wait_condition("clean", "Complete", PATIENCE)
    meta = runs.get("gtr", "clean")["metadata"]
    assert "finalizers" not in meta
    assert set(meta.get("annotations", {})) <= {
        "kubectl.kubernetes.io/last-applied-configuration",
        "gymtrain.dev/record",
    }


def test_a_claim_that_comes_after_the_run_is_noticed(runs: Kubectl, operator: OperatorProcess) -> None:
    run = played_run("late")
    run["spec"]["data"] = {"train": [{"source": "pvc://rows/a.jsonl"}]}
    runs.apply(run)
    words = "PersistentVolumeClaim rows not found"
    eventually(lambda: words in runs.condition("late", "PreflightPassed").get("message", ""), "told", PATIENCE)
    assert runs.pods("late") == []
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "rows"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    runs.apply(claim)
    eventually(lambda: runs.pods("late", role="preflight"), "preflight starts", PATIENCE)
