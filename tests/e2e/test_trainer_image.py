"""The unit tests that need torch, in the image that carries it."""

import pytest

from tests.support.kubectl import Kubectl
from tests.support.trainer_tests import run_to_its_end

SECONDS = 2400.0  # beside other tests, on a slow machine; alone some five minutes


@pytest.mark.timeout(SECONDS + 120)
def test_the_torch_tests_pass_in_the_trainers_image(kubectl: Kubectl) -> None:
    log = run_to_its_end(kubectl, "torch-tests", {"OMP_NUM_THREADS": "2"}, SECONDS)
    assert " passed" in log, "no test ran"
