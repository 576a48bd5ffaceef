"""A run in a queue of Kueue: one Workload, admitted, evicted and queued again as a unit."""

from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.names import pod_set_of_gym_server
from gymtrain_api.wiring import GymServerInfo
from gymtrain_operator.manifests.workload import Priority
from tests.support.kueue_world import admit, conditions, evict, queued, say, training, workload
from tests.support.world import GYM_VERDICT, World, deleted

MAKERS = ("Deployment", "Job", "LeaderWorkerSet")
ADMITTED, PROGRESSING = ConditionType.ADMITTED, ConditionType.PROGRESSING


def makers(world: World) -> list[str]:
    return [name for kind in MAKERS for name in world.existing(kind)]


def pod_sets(world: World) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in workload(world)["spec"]["podSets"]}


def templates(world: World) -> list[dict[str, Any]]:
    return [item["spec"]["template"] for kind in ("Deployment", "Job") for item in world.objects[kind].values()]


# ── in the queue ─────────────────────────────────────────────────────────────────────────────────


def test_preflight_comes_before_the_queue() -> None:
    world = World()
    world.queue = "team"
    world.reconcile()
    assert world.existing("Workload") == []
    assert len(world.existing("Pod")) == 1


def test_a_run_with_a_queue_gets_a_workload_and_no_pods() -> None:
    world = queued()
    assert workload(world)["spec"]["queueName"] == "team"
    assert makers(world) == []
    assert world.condition(ADMITTED).reason == Reason.WAITING_FOR_QUOTA
    assert world.status.state == "Queued"


def test_a_run_without_a_queue_has_no_workload_and_no_condition_of_it() -> None:
    world = World().to_servers()
    assert world.existing("Workload") == []
    assert world.status.condition(ADMITTED) is None
    assert makers(world) != []


def test_the_verdict_of_preflight_is_kept_before_the_wait() -> None:
    world = queued()
    world.seen.pop("preflight_output")
    world.objects["Pod"].clear()
    world.reconcile(3600)
    assert world.status.is_true(ConditionType.PREFLIGHT_PASSED)
    assert world.existing("Pod") == []


def test_all_parts_of_a_run_are_pod_sets() -> None:
    world = queued(trainer={"nodes": 2, "checkpoint": {"claimName": "c"}}, inference={"replicas": 3}, sandboxes={})
    counts = {name: one["count"] for name, one in pod_sets(world).items()}
    assert counts == {
        "trainer": 2,
        "inference": 3,
        "gym-head": 1,
        "gym-model": 1,
        "gym-resources": 1,
        "gym-agent": 1,
        "gateway": 1,
        "broker": 1,
    }


def test_servers_of_several_pods_are_two_sets() -> None:
    sets = pod_sets(queued(inference={"replicas": 2, "nodes": 4, "gpus": 8}))
    assert (sets["inference"]["count"], sets["inference-worker"]["count"]) == (2, 6)


def test_pod_sets_ask_for_what_the_pods_ask_for() -> None:
    template = {"spec": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]}}
    world = queued(trainer={"gpus": 8, "template": template})
    (container,) = pod_sets(world)["trainer"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "env" not in container
    assert pod_sets(world)["trainer"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    admit(world)
    world.reconcile()
    spec = world.job["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == container["resources"]


def test_gym_servers_with_settings_of_their_own_are_a_set_of_their_own() -> None:
    big = {"resources": {"requests": {"memory": "8Gi"}}}
    world = queued(gym={"configPaths": ["a"], "servers": {"math": {"replicas": 2, **big}, "math_agent": big}})
    counts = {name: one["count"] for name, one in pod_sets(world).items() if name.startswith("gym")}
    math_agent = pod_set_of_gym_server("math_agent")
    assert counts == {"gym-head": 1, "gym-model": 1, "gym-server-math": 2, math_agent: 1}


def test_gym_servers_that_need_the_same_share_a_set() -> None:
    twin = GymServerInfo(name="twin", kind="resources", implementation="reasoning_gym")
    own = {"resources": {"requests": {"memory": "8Gi"}}}
    gym = GYM_VERDICT.model_copy(
        update={
            "servers": [*GYM_VERDICT.servers, twin],
            "config": GYM_VERDICT.config | {"twin": GYM_VERDICT.config["math"]},
        }
    )
    world = World(gym={"configPaths": ["a"], "servers": {"math": own, "twin": own}})
    world.queue = "team"
    world.reconcile()
    world.preflight_ends(gym=gym)
    world.reconcile(5)
    assert pod_sets(world)["gym-server-math"]["count"] == 2
    assert len([name for name in pod_sets(world) if name.startswith("gym-server")]) == 1


def test_more_kinds_of_pods_than_kueue_takes_end_the_run_with_what_to_do() -> None:
    many = [GymServerInfo(name=f"s{n}", kind="resources", implementation="x") for n in range(18)]
    own = {f"s{n}": {"resources": {"requests": {"memory": f"{n + 1}Gi"}}} for n in range(18)}
    world = World(gym={"configPaths": ["a"], "servers": own})
    world.queue = "team"
    world.reconcile()
    config = GYM_VERDICT.config | {one.name: {"resources_servers": {"x": {"entrypoint": "app.py"}}} for one in many}
    servers = [*GYM_VERDICT.servers, *many]
    world.preflight_ends(gym=GYM_VERDICT.model_copy(update={"servers": servers, "config": config}))
    world.reconcile(5)
    failed = world.condition(ConditionType.FAILED)
    assert (failed.status, failed.reason) == ("True", Reason.INVALID_SPEC)
    assert "give several Gym servers the same resources" in failed.message


def test_waiting_is_told_in_kueues_words() -> None:
    world = queued()
    say(world, "QuotaReserved", "False", "WaitingForQuota", "insufficient unused quota for cpu")
    world.reconcile(5)
    assert world.condition(ADMITTED).message == (
        "waits in LocalQueue team: WaitingForQuota: insufficient unused quota for cpu"
    )


def test_kueues_reason_for_everything_is_left_out() -> None:
    world = queued()
    say(world, "QuotaReserved", "False", "Pending", "insufficient unused quota for cpu")
    world.reconcile(5)
    assert world.condition(ADMITTED).message == "waits in LocalQueue team: insufficient unused quota for cpu"


def test_a_kueue_that_never_looks_is_named() -> None:
    world = queued()
    world.reconcile(31)
    assert "is its controller running" in world.condition(ADMITTED).message


def test_no_deadline_counts_in_the_queue() -> None:
    world = queued(activeDeadlineSeconds=60, startupDeadlineSeconds=60)
    done = world.reconcile(10_000)
    assert world.status.state == "Queued"
    assert done.requeue_after is None or done.requeue_after > 1
    admit(world)
    world.reconcile(10_000)
    world.reconcile(30)
    assert world.status.state == "Starting"
    assert world.status.suspended_seconds is not None
    assert world.status.suspended_seconds >= 20_000


def test_a_change_in_the_queue_keeps_the_place() -> None:
    world = queued(inference={"replicas": 2})
    uid = workload(world)["metadata"]["uid"]
    world.change(inference={"replicas": 4})
    world.queue = "other"
    world.settle(5)
    assert pod_sets(world)["inference"]["count"] == 4
    assert workload(world)["spec"]["queueName"] == "other"
    assert workload(world)["metadata"]["uid"] == uid


def test_a_label_that_is_taken_away_in_the_queue_ends_the_wait() -> None:
    world = queued()
    world.queue = ""
    world.reconcile(5)
    assert world.existing("Workload") == []
    world.reconcile(5)
    assert makers(world) != []


def test_a_label_that_comes_later_counts_when_the_run_is_resumed() -> None:
    world = World().to_training()
    world.queue = "team"
    world.reconcile(5)
    assert world.existing("Workload") == []
    assert makers(world) != []
    world.change(suspend=True)
    world.settle(5)
    world.change(suspend=False)
    world.settle(5)
    assert world.existing("Workload") != []
    assert makers(world) == []


# ── admitted ─────────────────────────────────────────────────────────────────────────────────────


def test_pods_come_with_the_admission() -> None:
    world = admit(queued())
    world.reconcile(5)
    assert {"run-inference", "run-gateway", "run-trainer-1"} <= set(makers(world))
    assert world.condition(ADMITTED).message == "ClusterQueue cluster admitted the run; flavors h100"


def test_quota_without_admission_is_not_enough() -> None:
    world = queued()
    workload(world)["status"]["admissionChecks"] = [{"name": "nodes", "state": "Pending", "message": "provisioning"}]
    say(world, "QuotaReserved", "True", "QuotaReserved")
    world.reconcile(5)
    assert makers(world) == []
    assert "waits for nodes is Pending: provisioning" in world.condition(ADMITTED).message


def test_flavors_reach_all_pods() -> None:
    world = admit(queued(sandboxes={"backend": "Pod"}))
    world.reconcile(5)
    assert len(templates(world)) == 8
    for template in templates(world):
        assert template["spec"]["nodeSelector"] == {"pool": "h100"}
        assert {"key": "gpu", "operator": "Exists"} in template["spec"]["tolerations"]


def test_flavors_add_to_what_a_template_says() -> None:
    own = {"spec": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "own"}]}}
    world = admit(queued(trainer={"template": own}))
    world.reconcile(5)
    spec = world.job["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "fast", "pool": "h100"}
    assert spec["tolerations"] == [{"key": "own"}, {"key": "gpu", "operator": "Exists"}]


def test_what_an_admission_check_adds_reaches_its_pods() -> None:
    world = queued()
    update = {"name": "trainer", "nodeSelector": {"reserved": "x"}, "annotations": {"a": "b"}, "labels": {"c": "d"}}
    workload(world)["status"]["admissionChecks"] = [{"name": "nodes", "state": "Ready", "podSetUpdates": [update]}]
    admit(world).reconcile(5)
    template = world.job["spec"]["template"]
    assert template["spec"]["nodeSelector"]["reserved"] == "x"
    assert template["metadata"]["annotations"]["a"] == "b"
    assert template["metadata"]["labels"]["c"] == "d"
    assert template["metadata"]["labels"][labels.RUN] == "run"
    gateway = world.objects["Deployment"]["run-gateway"]["spec"]["template"]
    assert "reserved" not in gateway["spec"]["nodeSelector"]


def test_pods_whose_places_kueue_chooses_wait_for_its_choice() -> None:
    world = queued(
        trainer={"template": {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}}}
    )
    assert pod_sets(world)["trainer"]["topologyRequest"] == {
        "required": "rack",
        "podIndexLabel": "batch.kubernetes.io/job-completion-index",
    }
    admit(world, topologyAssignment={"levels": ["kubernetes.io/hostname"]}).reconcile(5)
    template = world.job["spec"]["template"]
    assert template["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert template["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "trainer"
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == "gymtrainingrun-run"
    assert "kueue.x-k8s.io/podset-unconstrained-topology" not in template["metadata"]["annotations"]


def test_kueue_knows_pods_that_it_places_though_nobody_asked_it_to() -> None:
    world = queued()
    admit(world, topologyAssignment={"levels": ["kubernetes.io/hostname"]}).reconcile(5)
    for template in templates(world):
        assert template["metadata"]["annotations"]["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"


def test_an_admission_changes_no_hash_of_a_server() -> None:
    world = admit(queued())
    world.reconcile(5)
    plain = World().to_servers()
    for name, deployment in world.objects["Deployment"].items():
        meta = plain.objects["Deployment"][name]["metadata"]
        assert deployment["metadata"]["annotations"] == meta["annotations"]


def test_fewer_vllm_servers_where_the_run_allows_that() -> None:
    world = queued(inference={"replicas": 4, "minReplicas": 2})
    assert pod_sets(world)["inference"]["minCount"] == 2
    admit(world, {"inference": 2}).reconcile(5)
    assert world.objects["Deployment"]["run-inference"]["spec"]["replicas"] == 2
    assert "inference runs with 2 of 4 replicas" in world.condition(ADMITTED).message
    world.servers_ready()
    world.trainer_reports("training", 1)
    world.settle(5)
    assert world.status.is_true(ConditionType.INFERENCE_READY)


def test_more_servers_than_were_admitted_wait_for_the_next_admission() -> None:
    world = training(inference={"replicas": 2})
    world.change(
        inference={"replicas": 5},
        gym={"configPaths": world.spec["gym"]["configPaths"], "servers": {"math": {"replicas": 3}}},
    )
    world.settle(5)
    assert world.objects["Deployment"]["run-inference"]["spec"]["replicas"] == 2
    assert world.objects["Deployment"]["run-gym-math"]["spec"]["replicas"] == 1
    assert "Gym servers math with fewer replicas" in world.condition(ADMITTED).message
    assert world.status.state == "Training"


def test_fewer_servers_than_were_admitted_take_effect_at_once() -> None:
    world = training(inference={"replicas": 3})
    world.change(inference={"replicas": 1})
    world.settle(5)
    assert world.objects["Deployment"]["run-inference"]["spec"]["replicas"] == 1
    assert world.status.state == "Training"


def test_kueue_is_told_once_that_all_pods_are_up() -> None:
    world = training()
    world.settle(2)
    assert conditions(world)["PodsReady"] == "True"
    assert conditions(world)["Admitted"] == "True"


def test_another_queue_does_not_take_a_running_run_away() -> None:
    world = training()
    world.queue = "other"
    world.settle(5)
    assert workload(world)["spec"]["queueName"] == "team"
    assert world.status.state == "Training"
    assert "the label kueue.x-k8s.io/queue-name has changed" in world.condition(ADMITTED).message


@pytest.mark.parametrize("queue", ["", "other"])
def test_a_running_run_does_not_leave_its_queue(queue: str) -> None:
    world = training()
    world.queue = queue
    world.settle(5)
    assert world.existing("Workload") != []


def test_how_urgent_a_run_is_can_change_at_any_time() -> None:
    world = World()
    world.queue = "team"
    world.seen["priority"] = Priority("WorkloadPriorityClass", "low", 1)
    world.to_servers()
    assert (workload(world)["spec"]["priorityClassRef"]["name"], workload(world)["spec"]["priority"]) == ("low", 1)
    admit(world).reconcile(5)
    world.seen["priority"] = Priority("WorkloadPriorityClass", "high", 9)
    world.settle(5)
    assert workload(world)["spec"]["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "high",
    }
    assert workload(world)["spec"]["priority"] == 9
    assert world.status.state == "Starting"


def test_the_workload_of_an_earlier_life_is_made_anew() -> None:
    world = queued()
    say(world, "Finished", "True", "Failed")
    uid = workload(world)["metadata"]["uid"]
    world.settle(5)
    assert workload(world)["metadata"]["uid"] != uid
    assert conditions(world) == {}


# ── evicted ──────────────────────────────────────────────────────────────────────────────────────


def test_an_evicted_run_stops_as_a_suspended_one() -> None:
    world = training()
    trainer = world.add_trainer_pod()
    evict(world)
    done = world.reconcile(5)
    assert "Job/run-trainer-1" in deleted(done)
    assert not [one for one in deleted(done) if one.startswith("Deployment/")]
    assert done.requeue_after == 1
    world.told_to_stop(trainer)
    done = world.reconcile(10)
    assert {"Deployment/run-inference", "Deployment/run-gateway"} <= set(deleted(done))
    assert all(one.foreground for one in done.delete if one.kind in MAKERS)
    assert world.condition(ADMITTED).reason == Reason.EVICTED
    assert "Preempted: for a Workload of higher priority" in world.condition(ADMITTED).message
    assert world.status.state == "Queued"


def test_quota_is_given_back_when_the_last_pod_is_gone() -> None:
    world = training()
    trainer = world.add_trainer_pod()
    evict(world)
    world.reconcile(5)
    world.reconcile(5)
    assert conditions(world)["QuotaReserved"] == "True"
    del world.objects["Pod"][trainer]
    world.reconcile(5)
    assert conditions(world)["QuotaReserved"] == "True", "the servers go after the trainer"
    world.reconcile(5)
    assert conditions(world) == {
        "Evicted": "True",
        "QuotaReserved": "False",
        "Admitted": "False",
        "Requeued": "True",
        "PodsReady": "False",
    }
    assert workload(world)["status"].get("admission") is None


def test_a_run_that_has_just_completed_is_not_stopped() -> None:
    world = training()
    world.trainer_ends(0)
    evict(world)
    world.reconcile(5)
    assert world.status.state == "Complete"
    assert conditions(world)["Finished"] == "True"


@pytest.mark.parametrize("reason", ["Deactivated", "PodsReadyTimeout", "LocalQueueStopped"])
def test_kueue_says_when_an_eviction_of_another_kind_is_queued_again(reason: str) -> None:
    world = training()
    evict(world, reason, "words")
    world.settle(5)
    assert conditions(world)["Requeued"] == "False"


def test_an_evicted_run_goes_on_with_the_same_attempt() -> None:
    world = training(step=3)
    evict(world)
    world.settle(5)
    assert makers(world) == []
    assert world.status.progress is not None
    assert world.status.progress.step == 3
    admit(world)
    world.reconcile(600)
    world.reconcile(2)
    assert (world.status.attempt, world.status.disrupted_attempts) == (1, [])
    assert world.existing("Job") == ["run-trainer-1"]


def test_a_deactivated_run_says_so_while_it_waits() -> None:
    world = training()
    evict(world, "Deactivated", "The workload is deactivated")
    workload(world)["spec"]["active"] = False
    world.settle(5)
    assert "Deactivated: The workload is deactivated" in world.condition(ADMITTED).message


def test_another_need_is_asked_for_anew() -> None:
    world = training()
    world.change(inference={"resources": {"requests": {"cpu": "8"}}})
    world.reconcile(5)
    assert makers(world) == []
    world.settle(5)
    (container,) = pod_sets(world)["inference"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "8"}}
    assert world.condition(ADMITTED).reason == Reason.WAITING_FOR_QUOTA


def test_a_workload_that_somebody_deletes_stops_the_run_and_is_made_anew() -> None:
    world = training()
    world.objects["Workload"].clear()
    world.reconcile(5)
    assert makers(world) == []
    world.settle(5)
    assert world.existing("Workload") != []


# ── suspension and the end ───────────────────────────────────────────────────────────────────────


def test_a_suspended_run_leaves_the_queue_once_its_pods_are_gone() -> None:
    world = training()
    trainer = world.add_trainer_pod()
    world.change(suspend=True)
    world.reconcile(5)
    world.reconcile(5)
    assert world.existing("Workload") != []
    del world.objects["Pod"][trainer]
    world.settle(5)
    assert world.existing("Workload") == []
    assert world.condition(ADMITTED).reason == Reason.SUSPENDED


def test_a_resumed_run_waits_again() -> None:
    world = training()
    world.change(suspend=True)
    world.settle(5)
    world.change(suspend=False)
    world.settle(100)
    assert makers(world) == []
    assert world.status.state == "Queued"
    admit(world).reconcile(100)
    assert world.status.suspended_seconds == pytest.approx(10 + 200, abs=60)


def test_the_end_of_a_run_frees_its_quota() -> None:
    world = training()
    world.trainer_ends(0)
    world.reconcile(5)
    assert conditions(world)["Finished"] == "True"
    assert world.status.state == "Complete"
    assert world.condition(ADMITTED).reason == Reason.FINISHED


def test_a_failed_run_frees_its_quota_and_says_why() -> None:
    world = training(backoffLimit=0)
    world.trainer_ends(1, "broken")
    world.reconcile(5)
    (finished,) = [one for one in workload(world)["status"]["conditions"] if one["type"] == "Finished"]
    assert (finished["status"], finished["reason"]) == ("True", "Failed")
    assert "broken" in finished["message"]


def test_an_ended_run_that_did_not_free_its_quota_does() -> None:
    world = training()
    world.trainer_ends(0)
    world.reconcile(5)
    live = workload(world)["status"]
    live["conditions"] = [one for one in live["conditions"] if one["type"] != "Finished"]
    world.reconcile(5)
    assert conditions(world)["Finished"] == "True"


def test_the_preflight_pod_has_no_flavor() -> None:
    world = queued()
    assert "nodeSelector" not in world.preflight_pod["spec"]


def test_the_priority_class_of_the_pods() -> None:
    world = World(priorityClassName="high").to_servers()
    assert world.preflight_pod["spec"]["priorityClassName"] == "high"
    assert {template["spec"]["priorityClassName"] for template in templates(world)} == {"high"}
