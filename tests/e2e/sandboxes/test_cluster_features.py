"""What sandboxes get where the cluster has it: a user namespace for root, and the daemon by an image volume.

`make test-containerd-2` starts such a cluster and tells the operator; elsewhere there is nothing to see.
"""

from typing import Any

import pytest

from tests.support import node
from tests.support.kubectl import Kubectl, eventually
from tests.support.sandboxes import IMAGE, Sandboxes, idle_run, running

pytestmark = pytest.mark.faults

# What images for root expect of it; ends at the first thing that fails.
WORK = """
set -e
install -d -o 1000 -g 1000 /srv/of-another
test "$(stat -c %u:%g /srv/of-another)" = 1000:1000
cp /etc/passwd /root/copy && chown nobody:nogroup /root/copy && chmod 600 /root/copy && cat /root/copy >/dev/null
su -s /bin/sh nobody -c 'id -un'
python3 -m venv --without-pip /opt/venv && /opt/venv/bin/python -c 'print("python runs")'
"""


@pytest.fixture(scope="module")
def told(operator: Kubectl) -> list[str]:
    """The operator's arguments."""
    (deployment,) = operator.list("deployments")
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


@pytest.fixture(scope="module")
def namespace(baseline_namespace: Kubectl) -> Kubectl:
    """One that admits root."""
    return baseline_namespace


@pytest.fixture(scope="module")
def boxes(told: list[str], namespace: Kubectl) -> Sandboxes:
    """Sandboxes of a run with root, and nothing said of user namespaces."""
    if "--user-namespaces" not in told:
        pytest.skip("the operator was not told of user namespaces (make test-containerd-2)")
    return idle_run(namespace, "roots", root=True)


@pytest.fixture(scope="module")
def box(boxes: Sandboxes) -> dict[str, Any]:
    """One of them."""
    return running(boxes.create(IMAGE, user="root"))


def test_root_of_a_sandbox_is_nobody_on_the_node(
    kubeconfig: str, namespace: Kubectl, boxes: Sandboxes, box: dict[str, Any]
) -> None:
    pod = namespace.get("pod", box["podName"])
    assert pod["spec"]["hostUsers"] is False
    done = boxes.run(box, "id -u; cat /proc/self/uid_map", user="root")
    uid, inside, outside, count = done["out"].split()
    assert (uid, inside, count) == ("0", "0", "65536"), done
    node.require_own_node(kubeconfig)
    assert node.user_of_daemon(pod["metadata"]["uid"]) == int(outside) >= 65536


def test_no_two_sandboxes_have_users_in_common(boxes: Sandboxes, box: dict[str, Any]) -> None:
    other = running(boxes.create(IMAGE, user="root"))
    first, second = (boxes.run(one, "cat /proc/self/uid_map", user="root")["out"].split()[1] for one in (box, other))
    assert abs(int(first) - int(second)) >= 65536
    boxes.close(other)


def test_root_does_in_it_what_images_expect(boxes: Sandboxes, box: dict[str, Any]) -> None:
    done = boxes.run(box, WORK, user="root")
    assert (done["code"], done["out"].split("\n")) == (0, ["nobody", "python runs", ""]), done


def test_the_daemon_is_mounted_from_its_image_and_read_only(
    told: list[str], namespace: Kubectl, boxes: Sandboxes, box: dict[str, Any]
) -> None:
    if "--image-volumes" not in told:
        pytest.skip("the operator was not told of image volumes (make test-containerd-2)")
    spec = namespace.get("pod", box["podName"])["spec"]
    assert "initContainers" not in spec
    assert [one["image"]["reference"] for one in spec["volumes"] if one["name"] == "gymtrain"]
    done = boxes.run(
        box, "ls /gymtrain; touch /gymtrain/x 2>&1; rm -f /gymtrain/gymtrain-sandboxd 2>&1; true", user="root"
    )
    assert "gymtrain-sandboxd" in done["out"], done
    assert done["out"].count("Read-only file system") == 2, done


def test_it_goes_as_it_should(namespace: Kubectl, boxes: Sandboxes, box: dict[str, Any]) -> None:
    """The last one: it ends the run."""
    assert boxes.close(box) == 204
    namespace.run("delete", "gtr", "roots", "--wait=false")
    eventually(lambda: boxes.pods() == [], "no sandbox is left", 60)
