"""Two operators over one API server, of which the one that leads is broken.

Each has its own way to the API server, which can be cut, and its own token of the chart's ServiceAccount, by which the
audit log tells them apart. They have the flags that the chart gives two replicas.
"""

import base64
import json
import random
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from tests.support.apiserver import ApiServer, binary
from tests.support.audit import Write, read_writes, writes_of_two
from tests.support.chart import render
from tests.support.cuttable import CuttableNetwork
from tests.support.install import OPERATOR_NAMESPACE, token_of_chart
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

_NAMESPACE = "failover"
_TRAINING = 3  # runs
_BRIEF_SECONDS = 20  # of an ended run
# A short run is applied before each break, so that the leader is in the middle of writes: for so long at most.
_MOST_HEAD_START_SECONDS = 2.0
# From when the other acts to when the stopped one goes on, or the network heals: for so long at most.
_MOST_REST_SECONDS = 2.0


class Break(StrEnum):
    """What happens to the leader."""

    KILLED = "SIGKILL"
    STOPPED = "SIGSTOP"
    CUT_OFF = "cut network"


@dataclass(frozen=True)
class Round:
    """One failover.

    Attributes:
        seconds: from the break to the other's first write about the run that was changed at the break.
        exit_code: the broken leader's, as `Popen.returncode` has it.
        of_two: writes of who no longer led, since the start.
    """

    how: Break
    seconds: float
    exit_code: int
    of_two: list[tuple[Write, Write]]


class _Replica:
    """One operator, with its way to the API server."""

    def __init__(self, server: ApiServer, folder: Path, name: str, flags: list[str]) -> None:
        self.name = name
        self.network = CuttableNetwork(server.port)
        self._server, self._folder, self._flags = server, folder, flags

    def start(self, stack: ExitStack) -> None:
        """Starts both. The end of `stack` ends them."""
        stack.enter_context(self.network)
        token = token_of_chart(self._server)
        claims = token.split(".")[1]
        self.writer = f"JTI={json.loads(base64.urlsafe_b64decode(claims + '=' * (-len(claims) % 4)))['jti']}"
        url = f"https://127.0.0.1:{self.network.port}"
        kubeconfig = self._server.kubeconfig_for(self.name, token, url)
        flags = ("--leader-elect", f"--lease-namespace={OPERATOR_NAMESPACE}", f"--identity={self.name}", *self._flags)
        self.process = OperatorProcess(kubeconfig, self._folder / f"{self.name}.log", *flags)
        stack.callback(self._end)
        self.process.start()

    @property
    def leads(self) -> bool:
        """Whether it leads, as its metric says."""
        return self.process.metrics()["gymtrain_operator_leader"] == 1

    def _end(self) -> None:
        if self.process.process.poll() is None:
            self.process.process.send_signal(signal.SIGCONT)
            self.process.stop(signal.SIGKILL)


class Failover:
    """Two operators and a few runs that train; use as a context manager.

    The API server has the CRDs, the operator's namespace, a fake node, controllers, and the policy of `audit`.
    """

    def __init__(self, server: ApiServer, folder: Path, seed: int = 0) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._admin = Kubectl(str(server.kubeconfig), _NAMESPACE, binary("kubectl"))
        flags = short_lease_flags()
        self._replicas = [_Replica(server, folder, name, flags) for name in ("one", "two")]
        self._rounds = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._admin.run("create", "namespace", _NAMESPACE)
            for replica in self._replicas:
                replica.start(stack)
            self._admin.apply(*(played_run(f"long-{number}") for number in range(_TRAINING)))
            eventually(self._all_train, "all runs train", PATIENCE)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self, how: Break) -> Round:
        """Breaks the leader, changes a run, waits until the other carries that out, and brings the first one back.

        Raises:
            AssertionError: the other doesn't act, or the broken one doesn't end, however long one waits.
        """
        leader, standby = self._roles()
        self._rounds += 1
        self._admin.apply(played_run(f"brief-{self._rounds}", ttlSecondsAfterFinished=_BRIEF_SECONDS))
        time.sleep(self._random.uniform(0, _MOST_HEAD_START_SECONDS))
        name = f"long-{self._rounds % _TRAINING}"
        suspend = self._state(name) != "Suspended"

        broken = time.time()
        match how:
            case Break.KILLED:
                leader.process.process.kill()
            case Break.STOPPED:
                leader.process.process.send_signal(signal.SIGSTOP)
            case Break.CUT_OFF:
                leader.network.cut()
        self._admin.run("patch", "gtr", name, "--type=merge", "-p", json.dumps({"spec": {"suspend": suspend}}))
        carried_out = (
            (lambda: self._state(name) == "Suspended") if suspend else (lambda: self._state(name) != "Suspended")
        )
        eventually(carried_out, f"{standby.name} acts after {how} of {leader.name}", PATIENCE, every=0.2)
        seconds = self._first_write(standby, name, broken) - broken

        time.sleep(self._random.uniform(0, _MOST_REST_SECONDS))
        match how:
            case Break.STOPPED:
                leader.process.process.send_signal(signal.SIGCONT)
            case Break.CUT_OFF:
                if self._random.random() < 0.5:  # it ends though the network doesn't heal
                    leader.process.process.wait(PATIENCE)
                leader.network.heal()
        code = leader.process.process.wait(PATIENCE)
        leader.process.start()  # as the kubelet does
        return Round(how, seconds, code, writes_of_two(read_writes(self._server.audit_log)))

    def writes(self) -> int:
        """How many there are in the audit log."""
        return len(read_writes(self._server.audit_log))

    def _roles(self) -> tuple[_Replica, _Replica]:
        """The leader and the other."""

        def leading() -> list[_Replica]:
            return sorted(self._replicas, key=lambda replica: replica.leads, reverse=True)

        eventually(lambda: [replica.leads for replica in leading()] == [True, False], "one of two leads", PATIENCE)
        leader, standby = leading()
        return leader, standby

    def _first_write(self, replica: _Replica, run: str, since: float) -> float:
        """When the replica first wrote an object of the run."""
        return next(
            write.done
            for write in read_writes(self._server.audit_log)
            if write.writer == replica.writer
            and write.asked > since
            and write.target[1] == _NAMESPACE
            and write.target[2].startswith(run)
        )

    def _state(self, run: str) -> str:
        state: str = self._admin.get("gymtrainingrun", run).get("status", {}).get("state", "")
        return state

    def _all_train(self) -> bool:
        return [self._state(f"long-{number}") for number in range(_TRAINING)] == ["Training"] * _TRAINING


def short_lease_flags() -> list[str]:
    """The times of the Lease as the chart has them for two replicas."""
    (deployment,) = [m for m in render("replicas=2") if m["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return [argument for argument in container["args"] if argument.startswith("--leader-elect-")]
