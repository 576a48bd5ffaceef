"""The CRD as the API server sees it: structural, with defaults, pruning and a status of its own."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.learning.runs import ENVIRONMENTS, Kind, Variant, objects
from tests.support.kubectl import Kubectl, KubectlError
from tests.support.pages import yaml_blocks
from tests.support.specs import smallest_run

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
LEARNING = [Variant(name, kind, 1) for name in ENVIRONMENTS for kind in Kind]
TRAINERS = sorted((Path(__file__).parents[2] / "examples" / "trainers").glob("*/run.yaml"))


def test_the_crd_is_established_and_structural(kubectl: Kubectl) -> None:
    status = kubectl.get("crd", "gymtrainingruns.gymtrain.dev")["status"]
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions == {"Established": "True", "NamesAccepted": "True"}  # NonStructuralSchema would stand here


@pytest.mark.parametrize("path", [*EXAMPLES, *TRAINERS], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_examples_are_accepted(kubectl: Kubectl, path: Path) -> None:
    kubectl.run("apply", "--dry-run=server", "--validate=strict", "-f", str(path))


@pytest.mark.parametrize("variant", LEARNING, ids=lambda variant: variant.name)
def test_the_learning_benchmarks_runs_are_accepted(kubectl: Kubectl, variant: Variant) -> None:
    for made in objects(variant):
        kubectl.run("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(made))


def test_the_tutorials_run_is_accepted(kubectl: Kubectl, tmp_path: Path) -> None:
    (block,) = yaml_blocks("docs/tutorial.md")
    (tmp_path / "run.yaml").write_text(block)
    kubectl.run("apply", "--dry-run=server", "--validate=strict", "-f", str(tmp_path / "run.yaml"))


def test_server_side_apply_takes_an_example(kubectl: Kubectl) -> None:
    kubectl.run("apply", "--server-side", "-f", str(next(p for p in EXAMPLES if p.stem == "quickstart")))
    kubectl.run("apply", "--server-side", "-f", str(next(p for p in EXAMPLES if p.stem == "quickstart")))
    assert kubectl.get("gtr", "quickstart")["metadata"]["generation"] == 1


RECORDS = {"samples": "None", "rollouts": "None", "groupsPerStep": 1, "format": "Parquet", "maxSize": "1Gi"}


def test_settings_left_out_are_filled_in(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run())
    spec = kubectl.get("gtr", "small")["spec"]
    assert spec == {
        "suspend": False,
        "model": {"source": "hf://Qwen/Qwen3-0.6B", "dtype": "auto"},
        "gym": {"configPaths": ["resources_servers/reasoning_gym/configs/reasoning_gym.yaml"]},
        "data": {"train": [{"source": "pvc://datasets/train.jsonl", "weight": 1}]},
        "inference": {"replicas": 1, "nodes": 1, "gpus": 0},
        "trainer": {"nodes": 1, "processesPerNode": 1, "gpus": 0, "records": RECORDS},
        "rollout": {
            "mode": "Agent",
            "maxConcurrent": 64,
            "timeoutSeconds": 1800,
            "verifyTimeoutSeconds": 300,
            "maskTruncated": False,
            "maxAttempts": 3,
            "onFailure": {"infrastructure": "Retry", "timeout": "Retry", "environment": "Retry"},
            "maxStaleness": 4,
            "dynamicSampling": False,
            "correction": {"mode": "None", "minRatio": "0.5", "maxRatio": "2"},
            "stallTimeoutSeconds": 1800,
        },
        "gateway": {"replicas": 1, "timeoutSeconds": 600, "maxInFlight": 256},
        "weightSync": {"transport": "Auto", "timeoutSeconds": 600, "parityEverySyncs": 50},
        "startupDeadlineSeconds": 1800,
        "backoffLimit": 3,
    }


def test_a_block_given_in_part_keeps_the_other_defaults(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run(trainer={"config": {"max_steps": 5}, "checkpoint": {"size": "1Gi"}}))
    trainer = kubectl.get("gtr", "small")["spec"]["trainer"]
    assert trainer == {
        "nodes": 1,
        "processesPerNode": 1,
        "gpus": 0,
        "config": {"max_steps": 5},
        "checkpoint": {"size": "1Gi", "accessModes": ["ReadWriteOnce"], "retain": "Keep"},
        "records": RECORDS,
    }


def test_a_compile_cache_is_on_one_node_unless_it_says_more(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run(inference={"compileCache": {"size": "1Gi"}}))
    cache = kubectl.get("gtr", "small")["spec"]["inference"]["compileCache"]
    assert cache == {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}


def test_a_null_means_left_out(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run(serviceAccountName=None, backoffLimit=None, trainer={"checkpoint": None}))
    spec = kubectl.get("gtr", "small")["spec"]
    assert "serviceAccountName" not in spec
    assert spec["backoffLimit"] == 3
    assert "checkpoint" not in spec["trainer"]


def test_an_unknown_field_is_refused_by_name(kubectl: Kubectl) -> None:
    with pytest.raises(KubectlError, match=r'unknown field "spec.trainer.learningRate"'):
        kubectl.apply(smallest_run(trainer={"learningRate": 0.1}))


def test_an_unknown_field_is_dropped_without_validation(kubectl: Kubectl) -> None:
    run = smallest_run(trainer={"learningRate": 0.1})
    kubectl.run("apply", "--validate=ignore", "-f", "-", stdin=json.dumps(run))
    assert "learningRate" not in kubectl.get("gtr", "small")["spec"]["trainer"]


def test_free_blocks_keep_whatever_they_hold(kubectl: Kubectl) -> None:
    overrides = {"a": {"b": [1, 2.5, "x", True, None, {"c": "${oc.env:KEY}"}]}}
    template = {"spec": {"nodeSelector": {"gpu": "yes"}, "containers": [{"name": "trainer", "env": []}]}}
    config = {"learning_rate": 1e-6, "model_init_kwargs": {"attn": "sdpa"}}
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "api-key"}}}]
    run = smallest_run(trainer={"config": config, "template": template})
    run["spec"]["gym"] |= {"overrides": overrides, "env": env}
    kubectl.apply(run)
    spec = kubectl.get("gtr", "small")["spec"]
    assert spec["gym"]["overrides"] == overrides
    assert spec["gym"]["env"] == env
    assert spec["trainer"]["config"] == config
    assert spec["trainer"]["template"] == template


def test_a_user_cannot_write_the_status(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run() | {"status": {"state": "Complete"}})
    assert "status" not in kubectl.get("gtr", "small")


def test_the_operator_cannot_change_the_spec_through_the_status(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run())
    patch = {"spec": {"suspend": True}, "status": {"state": "Training"}}
    kubectl.run("patch", "gtr", "small", "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    run = kubectl.get("gtr", "small")
    assert run["status"]["state"] == "Training"
    assert run["spec"]["suspend"] is False
    assert run["metadata"]["generation"] == 1


def test_two_conditions_of_one_type_are_refused(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run())
    condition = {"type": "Complete", "status": "True", "reason": "X", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patch = json.dumps({"status": {"conditions": [condition, condition]}})
    with pytest.raises(KubectlError, match="Duplicate value"):
        kubectl.run("patch", "gtr", "small", "--subresource=status", "--type=merge", "-p", patch)


def test_kubectl_get_shows_how_the_run_goes(kubectl: Kubectl) -> None:
    kubectl.apply(smallest_run())
    conditions = [
        {
            "type": "Progressing",
            "status": "True",
            "reason": "Training",
            "message": "step 4 of 30",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
        {
            "type": "Healthy",
            "status": "False",
            "reason": "KLHigh",
            "message": "KL 0.9, limit 0.2",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ]
    status = {
        "state": "Training",
        "attempt": 2,
        "conditions": conditions,
        "progress": {
            "step": 4,
            "maxSteps": 30,
            "reward": "0.41",
            "validationReward": "0.55",
            "tokensPerSecond": "55.0",
        },
        "weightSync": {"transport": "HTTPFull"},
    }
    kubectl.run("patch", "gtr", "small", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    head, row = kubectl.run("get", "gtr").splitlines()
    assert head.split() == ["NAME", "STATE", "STEP", "MAX", "REWARD", "VALIDATION", "TRANSPORT", "AGE"]
    assert row.split()[:7] == ["small", "Training", "4", "30", "0.41", "0.55", "HTTPFull"]
    head, row = kubectl.run("get", "gtr", "-o", "wide").splitlines()
    assert head.split()[-4:] == ["ATTEMPT", "TOKENS/S", "HEALTH", "MESSAGE"]
    assert row.split()[-5:] == ["KLHigh", "step", "4", "of", "30"]
    kubectl.run("wait", "--for=condition=Progressing", "gtr/small", "--timeout=5s")


def test_kubectl_explain_tells_what_a_field_means(kubectl: Kubectl) -> None:
    assert "PersistentVolumeClaim" in kubectl.run("explain", "gtr.spec.trainer.checkpoint.claimName")


def test_the_committed_crd_is_what_the_server_holds(kubectl: Kubectl) -> None:
    """Nothing was dropped: a keyword that the server doesn't know would vanish."""
    path = Path(__file__).parents[2] / "crds" / "gymtrain.dev_gymtrainingruns.yaml"
    committed = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]
    assert kubectl.get("crd", "gymtrainingruns.gymtrain.dev")["spec"]["versions"][0]["schema"] == committed
