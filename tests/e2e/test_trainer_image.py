"""The unit tests that need torch, in the image that carries it."""

from tests.support.kubectl import Kubectl, eventually


def test_the_torch_tests_pass_in_the_trainers_image(kubectl: Kubectl) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "torch-tests"},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "tests",
                    "image": "gymtrain/trainer-tests:dev",
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": "OMP_NUM_THREADS", "value": "2"}, {"name": "HOME", "value": "/tmp"}],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
    kubectl.apply(pod)
    ended = ("Succeeded", "Failed")
    eventually(lambda: kubectl.get("pod", "torch-tests")["status"]["phase"] in ended, "the tests end", 600)
    log = kubectl.logs("torch-tests", "tests")
    assert kubectl.get("pod", "torch-tests")["status"]["phase"] == "Succeeded", log
    assert " passed" in log, "no test ran"
