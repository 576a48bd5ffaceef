"""The leader is lost: another acts, and the one that was lost writes no more. `make test-failover` does it often."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.conftest import DEFAULTS_CRD, OPERATOR_NAMESPACE, install_crd, kubeconfig_of_chart
from tests.support.apiserver import ApiServer, binary
from tests.support.audit import POLICY, read_writes
from tests.support.failover import Break, Failover
from tests.support.fakenode import FakeNode
from tests.support.kubectl import PATIENCE, Kubectl
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

_LEASE_SECONDS = 30
# Longer than the chart has it: before it may write no more, an operator on a slow machine has to begin to.
_LEASE = (
    f"--leader-elect-lease-duration={_LEASE_SECONDS}",
    "--leader-elect-renew-deadline=20",
    "--leader-elect-retry-period=2",
)
# Of the breaks' moments. With this one the network heals after the leader has ended.
_SEED = 3


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, kubectl_cache: None) -> Iterator[ApiServer]:
    """An API server that notes who writes, with controllers, a fake node, and the operator's namespace."""
    with ApiServer(tmp_path_factory.mktemp("audited"), audit_policy=POLICY) as server:
        install_crd(server)
        install_crd(server, DEFAULTS_CRD)
        admin = Kubectl(str(server.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
        admin.run("create", "namespace", OPERATOR_NAMESPACE)
        server.start_controllers()
        with FakeNode(server, long_steps=1_000_000) as node:
            yield server
            assert node.errors == []


@pytest.fixture(scope="module")
def failover(audited: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failover]:
    """Two operators, of which one leads."""
    with Failover(audited, tmp_path_factory.mktemp("failover"), _SEED) as started:
        yield started


def test_a_leader_that_does_not_notice_the_loss_of_its_lease_writes_no_more_and_ends(
    audited: ApiServer, tmp_path: Path
) -> None:
    """It gets no turn to renew, while all else goes on."""
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio\n"
        "from gymtrain_operator.leadership import Leadership\n"
        "async def keep_renewing(self):\n"
        "    await asyncio.Event().wait()\n"
        "Leadership.keep_renewing = keep_renewing\n"
    )
    admin = Kubectl(str(audited.kubeconfig), "default", binary("kubectl"))
    admin.apply(played_run("long-one"))
    flags = ("--leader-elect", f"--lease-namespace={OPERATOR_NAMESPACE}", *_LEASE)
    process = OperatorProcess(kubeconfig_of_chart(audited), tmp_path / "log", *flags, preload=tmp_path)
    process.launch()
    try:
        assert process.process.wait(PATIENCE) == 1
    finally:
        process.stop()
        admin.run("delete", "gtr", "long-one")
    assert "a write was held back" in (tmp_path / "log").read_text()
    lease, *others = sorted(read_writes(audited.audit_log), key=lambda write: not write.is_lease)
    assert others
    assert [write for write in others if write.done > lease.done + _LEASE_SECONDS] == []


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
