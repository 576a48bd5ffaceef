"""The leader is lost: another acts, and the one that was lost writes no more. `make test-failover` does it often."""

from collections.abc import Iterator

import pytest

from tests.api.conftest import DEFAULTS_CRD, install_crd
from tests.support.apiserver import ApiServer
from tests.support.audit import POLICY
from tests.support.failover import Break, Failover
from tests.support.fakenode import FakeNode


@pytest.fixture(scope="module")
def failover(tmp_path_factory: pytest.TempPathFactory, kubectl_cache: None) -> Iterator[Failover]:
    """Two operators, of which one leads."""
    folder = tmp_path_factory.mktemp("failover")
    with ApiServer(folder, audit_policy=POLICY) as server:
        install_crd(server)
        install_crd(server, DEFAULTS_CRD)
        server.start_controllers()
        with FakeNode(server, long_steps=1_000_000), Failover(server, folder) as started:
            yield started


@pytest.mark.parametrize(
    ("how", "code"),
    [
        pytest.param(Break.KILLED, -9, id="killed"),
        pytest.param(Break.STOPPED, 1, id="stopped"),
        pytest.param(Break.CUT_OFF, 1, id="cut-off"),
    ],
)
def test_another_acts_for_a_leader_that_is_lost_and_that_one_writes_no_more(
    failover: Failover, how: Break, code: int
) -> None:
    found = failover.round(how)
    assert found.of_two == []
    assert found.exit_code == code
    assert failover.writes() > 0
