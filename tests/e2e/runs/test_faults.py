"""Servers die while a run trains; the run goes on and learns from no wrong sample."""

import pytest

from tests.support.faults import step, trainer_events
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import tiny_run, unhurried_run

MINUTES = 60
LONG = 100  # steps: an operator that another test kills has a successor within the minute

pytestmark = pytest.mark.timeout(30 * MINUTES)  # some three a test; a slow machine that does other work took 15


def test_a_killed_gym_server_and_a_killed_vllm_pod_cost_time_but_no_wrong_sample(
    operator: Kubectl, kubectl: Kubectl
) -> None:
    run = unhurried_run("faults", max_steps=LONG)
    kubectl.apply(run)
    eventually(lambda: step(kubectl, "faults") >= 2, "two steps are done", 8 * MINUTES)

    resources = kubectl.pods("faults", role="gym", server="reasoning_gym")[0]["metadata"]["name"]
    kubectl.run("delete", "pod", resources, "--grace-period=0", "--force")
    at_kill = step(kubectl, "faults")
    eventually(lambda: step(kubectl, "faults") >= at_kill + 4, "steps go on after the Gym server's death", 4 * MINUTES)

    vllm = kubectl.pods("faults", role="inference")[0]["metadata"]["name"]
    kubectl.run("delete", "pod", vllm, "--grace-period=0", "--force")
    at_kill = step(kubectl, "faults")
    eventually(lambda: step(kubectl, "faults") >= at_kill + 6, "steps go on after vLLM's death", 6 * MINUTES)

    kubectl.wait_condition("faults", "Complete", 10 * MINUTES)
    status = kubectl.get("gymtrainingrun", "faults")["status"]
    assert status["attempt"] == 1, "the trainer lived through both"

    # Each sample that was trained on names the weights that made it; weights of no run never show up, and a
    # rollout that failed was dropped from its group instead of counting as reward 0.
    group = run["spec"]["trainer"]["config"]["num_generations"]
    for line in trainer_events(kubectl, "faults", "step"):
        assert all(version.startswith("faults:1:") for version in line["weight_versions"]), line
        assert 2 * line["groups"] <= line["rollouts"] <= group * line["groups"], line
    assert all(one["outcome"] == "dropped" for one in status["progress"].get("lostRollouts", [])), status


def test_a_run_can_be_suspended_and_resumed_and_goes_on_from_its_checkpoint(
    operator: Kubectl, kubectl: Kubectl
) -> None:
    kubectl.apply(unhurried_run("pausing", max_steps=LONG, save_steps=10))
    eventually(lambda: step(kubectl, "pausing") >= 12, "twelve steps are done", 8 * MINUTES)
    kubectl.run("patch", "gtr", "pausing", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    kubectl.wait_condition("pausing", "Suspended", 2 * MINUTES)
    eventually(lambda: not kubectl.pods("pausing"), "a suspended run holds no pod", 90)

    kubectl.run("patch", "gtr", "pausing", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    kubectl.wait_condition("pausing", "Complete", 8 * MINUTES)
    first = trainer_events(kubectl, "pausing", "step")[0]["step"]
    assert first > 10, "the first step after resuming follows a checkpoint, not the start"


def test_the_checkpoints_of_a_deleted_run_stay_and_the_next_of_its_name_goes_on_from_them(
    operator: Kubectl, kubectl: Kubectl
) -> None:
    run = tiny_run("kept", max_steps=4, save_steps=2)
    del run["spec"]["trainer"]["checkpoint"]["retain"]
    kubectl.apply(run)
    kubectl.wait_condition("kept", "Complete", 8 * MINUTES)
    kubectl.run("delete", "gtr", "kept")
    eventually(lambda: not kubectl.pods("kept"), "its pods are gone", 90)
    (claim,) = kubectl.list("persistentvolumeclaims", "gymtrain.dev/run=kept")
    assert claim["metadata"]["name"] == "kept-checkpoints"

    again = tiny_run("kept", max_steps=8, save_steps=2)
    again["spec"]["resumeFrom"] = "kept/checkpoint-7"
    kubectl.apply(again)
    kubectl.wait_condition("kept", "Failed", 3 * MINUTES)
    refused = kubectl.condition("kept", "PreflightPassed")["message"]
    assert "kept/checkpoint-4" in refused, "it lists what is there"

    again["spec"]["resumeFrom"] = "kept"
    kubectl.apply(again)
    eventually(lambda: kubectl.condition("kept", "Failed")["status"] == "False", "it is checked again", 120)
    kubectl.wait_condition("kept", "Complete", 8 * MINUTES)
    assert [line["step"] for line in trainer_events(kubectl, "kept", "step")] == [5, 6, 7, 8]
    reasons = {event["reason"] for event in kubectl.list("events") if event["involvedObject"].get("name") == "kept"}
    assert "ResumedFromCheckpoint" in reasons
    kubectl.run("delete", "gtr", "kept")
    eventually(lambda: not kubectl.list("persistentvolumeclaims"), "retain: Delete holds for what was kept", 90)
