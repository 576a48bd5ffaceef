"""The unit tests that need torch, in the image that carries it."""

from tests.support.kubectl import Kubectl
from tests.support.trainer_tests import run_to_its_end


def test_the_torch_tests_pass_in_the_trainers_image(kubectl: Kubectl) -> None:
    log = run_to_its_end(kubectl, "torch-tests", {"OMP_NUM_THREADS": "2"}, 600)
    assert " passed" in log, "no test ran"
