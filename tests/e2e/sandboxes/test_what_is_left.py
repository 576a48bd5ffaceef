"""What a run's sandboxes leave behind. The last file of its folder: it takes the run away."""

from tests.support.kubectl import Kubectl, eventually
from tests.support.sandboxes import IMAGE, Sandboxes, running

KINDS = {
    "Pod": "pods",
    "AgentSandbox": "pods,sandboxclaims,sandboxes.agents.x-k8s.io,sandboxtemplates,sandboxwarmpools",
}


def test_a_deleted_run_leaves_no_sandbox_though_its_broker_was_killed(
    run: Kubectl, boxes: Sandboxes, backend: str
) -> None:
    for number in range(3):
        running(boxes.create(IMAGE, task=f"left-{number}"))
    (broker,) = run.pods("boxes", role="broker")
    run.run("delete", "pod", broker["metadata"]["name"], "--grace-period=0", "--force")
    run.run("delete", "gymtrainingrun", "boxes", timeout=60)
    eventually(lambda: not boxes.pods(), "no sandbox is left", 60)
    mine = [one for one in run.list(KINDS[backend]) if one["metadata"]["name"].startswith("boxes-")]
    assert [one["metadata"]["name"] for one in mine if one["kind"] != "Pod"] == []
