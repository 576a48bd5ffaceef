"""The images for GPUs, as far as they can be tried without one (`make test-gpu-images`)."""

from pathlib import Path

import pytest

from tests.support.images import image
from tests.support.kubectl import Kubectl, eventually
from tests.support.restricted import restricted_spec

pytestmark = pytest.mark.gpu_images

SECONDS = 1800.0  # alone some three minutes
_CHECK = Path(__file__).with_name("check.py")
_HOME = "/gymtrain/scratch"


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("part", ["inference", "trainer"])
def test_what_a_gpu_needs_is_in_the_image(kubectl: Kubectl, part: str) -> None:
    """In a pod like a run's: no root, nothing to write to but a scratch volume."""
    kubectl.run("create", "configmap", "check", f"--from-file={_CHECK}")
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    folders = {"HOME": _HOME, "TMPDIR": _HOME, "TRITON_CACHE_DIR": f"{_HOME}/triton"}
    container = {
        "name": "check",
        "image": image(f"{part}-gpu"),
        "command": ["python", "/check/check.py", part],
        "env": [{"name": name, "value": value} for name, value in folders.items()],
        "volumeMounts": [{"name": "check", "mountPath": "/check"}, {"name": "scratch", "mountPath": _HOME}],
        "securityContext": security,
    }
    volumes = [{"name": "check", "configMap": {"name": "check"}}, {"name": "scratch", "emptyDir": {}}]
    spec = restricted_spec(container, restartPolicy="Never", volumes=volumes)
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": part}, "spec": spec})

    def phase() -> str:
        return str(kubectl.get("pod", part)["status"]["phase"])

    eventually(lambda: phase() in ("Succeeded", "Failed"), f"the checks of {part}-gpu end", SECONDS)
    log = kubectl.logs(part, "check")
    print(log)
    assert phase() == "Succeeded", log
