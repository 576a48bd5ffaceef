"""What a run's sandboxes leave behind. The last file of its folder: it takes the run away."""

from tests.support.kubectl import Kubectl, eventually
from tests.support.sandboxes import IMAGE, Sandboxes, running


def test_a_deleted_run_leaves_no_sandbox_though_its_broker_was_killed(run: Kubectl, boxes: Sandboxes) -> None:
    for number in range(3):
        running(boxes.create(IMAGE, task=f"left-{number}"))
    (broker,) = run.pods("boxes", role="broker")
    run.run("delete", "pod", broker["metadata"]["name"], "--grace-period=0", "--force")
    run.run("delete", "gymtrainingrun", "boxes", timeout=60)
    eventually(lambda: not boxes.pods(), "no sandbox is left", 60)
