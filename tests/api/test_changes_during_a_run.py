"""What may change once preflight has passed, and the words for what may not."""

import copy
import json
from typing import Any

import pytest

from gymtrain_api.validations import FIXED_AFTER_PREFLIGHT
from tests.support.kubectl import Kubectl, KubectlError
from tests.support.specs import smallest_run


def _run() -> dict[str, Any]:
    run = smallest_run(
        trainer={"nodes": 2, "config": {"max_steps": 5, "deep": {"a": 1}}, "checkpoint": {"claimName": "mine"}},
        inference={"args": ["--max-model-len=512"]},
        evaluation={"everySteps": 5},
    )
    run["spec"]["data"]["validation"] = [{"source": "pvc://datasets/held-out.jsonl"}]
    run["spec"]["gym"] |= {
        "overrides": {"server": {"key": {"deep": [1, 2]}}},
        "env": [{"name": "KEY", "value": "1"}],
        "servers": {"judge": {"replicas": 1}},
    }
    return run


# A different value, or None to take the field away, by path in the spec.
REFUSED: dict[str, tuple[str, Any]] = {
    "model": ("model.source", "hf://Qwen/Qwen3-4B"),
    "model dtype": ("model.dtype", "float32"),
    "model revision appears": ("model.revision", "v2"),
    "gym image": ("gym.image", "other"),
    "gym config": ("gym.configPaths", ["other.yaml"]),
    "a value deep in the overrides": ("gym.overrides", {"server": {"key": {"deep": [1, 3]}}}),
    "a key added to the overrides": ("gym.overrides", {"server": {"key": {"deep": [1, 2]}}, "more": 1}),
    "overrides taken away": ("gym.overrides", None),
    "gym env": ("gym.env", [{"name": "KEY", "value": "2"}]),
    "data": ("data.train", [{"source": "pvc://datasets/other.jsonl"}]),
    "evaluation": ("evaluation.everySteps", 7),
    "evaluation taken away": ("evaluation", None),
    "validation data": ("data.validation", [{"source": "pvc://datasets/other.jsonl"}]),
    "weight of a dataset": ("data.train", [{"source": "pvc://datasets/train.jsonl", "weight": 5}]),
    "inference image": ("inference.image", "other"),
    "gateway image": ("gateway.image", "other"),
    "rollout mode": ("rollout.mode", "Verify"),
    "inference GPUs": ("inference.gpus", 1),
    "the resource of vLLM's GPUs": ("inference.gpuResourceName", "amd.com/gpu"),
    "the resource of the trainer's GPUs": ("trainer.gpuResourceName", "amd.com/gpu"),
    "nodes of a server": ("inference.nodes", 2),
    "inference args": ("inference.args", ["--max-model-len=1024"]),
    "compile cache appears": ("inference.compileCache", {"claimName": "compiled"}),
    "trainer image": ("trainer.image", "other"),
    "trainer framework appears": ("trainer.framework", "TRL"),
    "nodes": ("trainer.nodes", 4),
    "processes": ("trainer.processesPerNode", 2),
    "trainer GPUs": ("trainer.gpus", 1),
    "a value deep in the trainer's config": ("trainer.config", {"max_steps": 5, "deep": {"a": 2}}),
    "checkpoint": ("trainer.checkpoint", {"claimName": "other"}),
    "checkpoint claim against a volume of the run's": (
        "trainer.checkpoint",
        {"size": "1Gi", "accessModes": ["ReadWriteMany"]},
    ),
    "checkpoint taken away": ("trainer.checkpoint", None),
    "trainer env": ("trainer.env", [{"name": "WANDB_PROJECT", "value": "other"}]),
    "push": ("trainer.push", {"to": "hf://org/other"}),
    "records": ("trainer.records.samples", "All"),
    "rollout": ("rollout.maxConcurrent", 8),
    "weight sync": ("weightSync.transport", "HTTPFull"),
    "where it goes on": ("resumeFrom", "workplace"),
    "tracing": ("tracing", {"endpoint": "http://other:4318"}),
    "service account": ("serviceAccountName", "other"),
    "priority class": ("priorityClassName", "urgent"),
}

ALLOWED: dict[str, tuple[str, Any]] = {
    "suspend": ("suspend", True),
    "replicas of vLLM": ("inference.replicas", 3),
    "fewest replicas of vLLM": ("inference.minReplicas", 1),
    "replicas of a Gym server": ("gym.servers", {"judge": {"replicas": 4}}),
    "backoff limit": ("backoffLimit", 9),
    "gateway replicas": ("gateway.replicas", 3),
    "gateway limits": ("gateway", {"maxInFlight": 8, "timeoutSeconds": 60}),
    "deadline": ("activeDeadlineSeconds", 100),
    "start-up deadline": ("startupDeadlineSeconds", 100),
    "time to live": ("ttlSecondsAfterFinished", 100),
    "resources": ("trainer.resources", {"requests": {"cpu": "2"}}),
    "template": ("trainer.template", {"spec": {"nodeSelector": {"a": "b"}}}),
    "the same settings spelt out": ("rollout", {"maxConcurrent": 64, "timeoutSeconds": 1800}),
}


def _changed(run: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    new = copy.deepcopy(run)
    *parents, last = path.split(".")
    block = new["spec"]
    for parent in parents:
        block = block.setdefault(parent, {})
    if value is None:
        del block[last]
    else:
        block[last] = value
    return new


def _report_preflight(kubectl: Kubectl, status: str) -> None:
    condition = {
        "type": "PreflightPassed",
        "status": status,
        "reason": "X",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    patch = json.dumps({"status": {"conditions": [condition]}})
    kubectl.run("patch", "gtr", "small", "--subresource=status", "--type=merge", "-p", patch)


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_pods_are_made_from_is_fixed(kubectl: Kubectl, case: str) -> None:
    path, value = REFUSED[case]
    kubectl.apply(_run())
    _report_preflight(kubectl, "True")
    with pytest.raises(KubectlError) as error:
        kubectl.apply(_changed(_run(), path, value))
    field = next(f for f in FIXED_AFTER_PREFLIGHT if path == f or path.startswith(f"{f}."))
    assert str(error.value).endswith(
        f'The GymTrainingRun "small" is invalid: spec.{field}: Forbidden: spec.{field} can\'t change after preflight '
        "has passed: delete the run and apply it again, or apply it under another name"
    )


def test_the_command_of_a_trainer_of_ones_own_is_fixed(kubectl: Kubectl) -> None:
    run = _changed(_changed(_run(), "trainer.image", "mine"), "trainer.command", ["python", "train.py"])
    kubectl.apply(run)
    _report_preflight(kubectl, "True")
    with pytest.raises(KubectlError, match=r"spec\.trainer\.command can't change after preflight has passed"):
        kubectl.apply(_changed(run, "trainer.command", ["python", "other.py"]))


def test_what_sandboxes_are_made_of_is_fixed_and_their_other_settings_are_not(kubectl: Kubectl) -> None:
    run = _changed(_run(), "sandboxes", {"backend": "Pod"})
    kubectl.apply(run)
    _report_preflight(kubectl, "True")
    with pytest.raises(KubectlError, match=r"spec\.sandboxes\.backend can't change after preflight has passed"):
        kubectl.apply(_changed(run, "sandboxes.backend", "AgentSandbox"))
    kubectl.apply(_changed(run, "sandboxes.maxConcurrent", 7))


@pytest.mark.parametrize("case", ALLOWED)
def test_the_rest_may_change(kubectl: Kubectl, case: str) -> None:
    kubectl.apply(_run())
    _report_preflight(kubectl, "True")
    kubectl.apply(_changed(_run(), *ALLOWED[case]))


def test_what_becomes_of_the_checkpoints_may_change_and_nothing_else_of_their_volume(kubectl: Kubectl) -> None:
    run = _changed(_run(), "trainer.nodes", 1)
    run = _changed(run, "trainer.checkpoint", {"size": "1Gi", "accessModes": ["ReadWriteOnce", "ReadWriteMany"]})
    kubectl.apply(run)
    _report_preflight(kubectl, "True")
    kubectl.apply(_changed(run, "trainer.checkpoint.retain", "Delete"))
    for field, value in (
        ("size", "2Gi"),
        ("storageClassName", "fast"),
        ("accessModes", ["ReadWriteMany"]),
    ):
        with pytest.raises(KubectlError, match=r"spec\.trainer\.checkpoint can't change after preflight has passed"):
            kubectl.apply(_changed(run, f"trainer.checkpoint.{field}", value))


@pytest.mark.parametrize("status", [None, "False", "Unknown"])
def test_a_run_that_has_not_passed_preflight_can_be_mended(kubectl: Kubectl, status: str | None) -> None:
    kubectl.apply(_run())
    if status:
        _report_preflight(kubectl, status)
    kubectl.apply(_changed(_changed(_run(), "trainer.config", {"max_steps": 6}), "model.source", "hf://a/b"))


def test_a_renamed_key_of_a_free_block_slips_past_the_api_server(kubectl: Kubectl) -> None:
    """Kubernetes' CEL compares keys that no schema knows only where both sides have them. The operator ignores
    it and says so in PreflightPassed. Should this test fail one day, Kubernetes has mended it: move it to REFUSED."""
    kubectl.apply(_run())
    _report_preflight(kubectl, "True")
    kubectl.apply(_changed(_run(), "trainer.config", {"max_stepz": 5, "deep": {"a": 1}}))


def test_every_fixed_field_has_a_case() -> None:
    paths = [path for path, _ in REFUSED.values()] + ["trainer.command"]  # which has a test of its own
    assert [f for f in FIXED_AFTER_PREFLIGHT if not any(p == f or p.startswith(f"{f}.") for p in paths)] == []


def test_the_status_of_a_fixed_run_can_be_written(kubectl: Kubectl) -> None:
    kubectl.apply(_run())
    _report_preflight(kubectl, "True")
    _report_preflight(kubectl, "False")
