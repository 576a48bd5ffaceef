"""The unit tests that need torch, in the image that carries it."""

import pytest

from tests.support.kubectl import Kubectl
from tests.support.trainer_tests import run_to_its_end

SECONDS = 2400.0  # beside other tests, on a slow machine; alone some five minutes


@pytest.mark.timeout(SECONDS + 120)
def test_the_torch_tests_pass_in_the_trainers_image(kubectl: Kubectl) -> None:
    # Files in memory: the pods that start beside it keep the node's disk so busy that a write took 30 s. One thread: a
    # second one would spin while it waits for the first, on CPUs that others want.
    files = {"name": "files", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    mounts = [{"name": "files", "mountPath": "/tmp"}]
    env = {"OMP_NUM_THREADS": "1"}
    log = run_to_its_end(kubectl, "torch-tests", env, SECONDS, volumes=[files], volumeMounts=mounts)
    assert " passed" in log, "no test ran"
