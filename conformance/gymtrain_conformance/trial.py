"""The run that a trainer is tried with.

without run.json   it has to end
attempt 1          the servers come up after it ─► rollouts ─► SIGTERM
attempt 2          a rollout fails ─► vLLM loses its weights ─► the end
"""

import contextlib
import importlib.util
import random
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.transports import syncs_weights
from gymtrain_api.wiring import GATEWAY_PORT, TRAINER_GRACE_SECONDS
from gymtrain_conformance.place import AGENTS, RUN_TOKEN, Place, Ports, make_place
from gymtrain_conformance.record import Ended, Look, Record, Rollout, ServersUp, Started
from gymtrain_conformance.stand_ins import OPEN_POSTS, Agents, Ask, Gateway, Server, Vllm
from gymtrain_conformance.trainer import Observer, Process

GATEWAY_HOSTS = tuple(f"127.0.93.{number}" for number in range(1, 33))  # a gateway's port can't be chosen, so its host
_TRAINERS_PORTS = range(20_000, 32_000)  # below those that Linux gives to connections
_SPEAKS_SECONDS = 5.0  # for which a trainer's port is waited for, which some never open
_SERVERS_AFTER_SECONDS = 1.0
_WITHOUT_RUN_SECONDS = 60.0
_SETTLE_SECONDS = 30.0  # for which the servers are waited for between attempts; a rollout takes three at most
_LOOK_AGAIN_SECONDS = 0.5  # for a last look at what vLLM was left with


class TrialError(Exception):
    """The trial can't be made on this machine, or with this run."""


@dataclass(frozen=True)
class Trial:
    """What was tried, and what was seen of it."""

    spec: GymTrainingRunSpec
    record: Record
    without_run: Ended
    inputs_before: dict[str, tuple[int, int]]
    inputs_after: dict[str, tuple[int, int]]
    log: str

    @property
    def syncs(self) -> bool:
        """Whether weights are sent."""
        return syncs_weights(self.spec)


def run_trial(spec: GymTrainingRunSpec, command: Sequence[str], *, seconds: float, model: Path | None = None) -> Trial:
    """Runs a trainer's command through the trial.

    Args:
        spec: of the run.
        command: of the trainer.
        seconds: that an attempt may take.
        model: a Hugging Face folder; one without a real model where it is left out.

    Raises:
        TrialError: the run can't be played here.
    """
    if spec.rollout.mode != "Agent" or spec.trainer.nodes != 1:
        raise TrialError("the trial has agents and one node: leave out rollout.mode and trainer.nodes")
    if spec.weight_sync.transport not in {"Auto", "HTTPFull", "None"}:
        raise TrialError("vLLM's stand-in pulls weights over HTTP: set weightSync.transport to HTTPFull or None")
    if syncs_weights(spec) and importlib.util.find_spec("blake3") is None:
        raise TrialError("weights are checked by blake3, which isn't installed: install it, or set transport None")
    record = Record()
    with tempfile.TemporaryDirectory(prefix="gymtrain-conformance-") as temporary:
        folder, gateway = Path(temporary), Gateway()
        log = folder / "log"
        vllm = Vllm(record, "conformance")
        agents = Agents(record, vllm, gateway, syncs=syncs_weights(spec))
        with contextlib.ExitStack() as servers:
            host = servers.enter_context(_gateway_server(gateway))
            vllm_socket, *agent_sockets = sockets = [
                servers.enter_context(reserved("127.0.0.1")) for _ in range(1 + len(AGENTS))
            ]
            ports = Ports(_port(vllm_socket), tuple(map(_port, agent_sockets)), _trainers_port())
            place = make_place(folder / "pod", spec, ports, host, model)
            before = place.inputs()
            environment = place.environment(1, ports, folder / "missing" / "run.json")
            with Process(command, environment, log) as process:
                without_run = process.wait(Record(), _WITHOUT_RUN_SECONDS, place.termination_log)
            play = _Play(command, place, ports, sockets, record, vllm, agents, seconds, _grace_seconds(spec), log)
            with Observer(record, ports.trainer, vllm):
                play.first_attempt(servers)
            with Observer(record, ports.trainer, vllm):  # another: what the first one saw is noted by now
                play.second_attempt()
        return Trial(spec, record, without_run, before, place.inputs(), log.read_text(errors="replace"))


@dataclass
class _Play:
    """The two attempts."""

    command: Sequence[str]
    place: Place
    ports: Ports
    sockets: Sequence[socket.socket]  # of vLLM and the agents, until they listen
    record: Record
    vllm: Vllm
    agents: Agents
    seconds: float
    grace_seconds: float
    log: Path
    servers: list[Server] = field(default_factory=list)  # that listen

    def first_attempt(self, servers: contextlib.ExitStack) -> None:
        """Until it has trained a step; then it is stopped."""
        with self._start(1) as process:
            process.until(self._speaks, _SPEAKS_SECONDS)
            process.until(lambda: False, _SERVERS_AFTER_SECONDS)
            self._open(servers)
            if process.until(self._has_trained, self.seconds):
                process.stop(self.record)
                process.wait(self.record, self.grace_seconds, self.place.termination_log)
            else:
                process.wait(self.record, 0.0, self.place.termination_log)
        self._settle()

    def second_attempt(self) -> None:
        """To its end, with what goes wrong in a cluster."""
        deadline = time.monotonic() + self.seconds
        with self._start(2) as process:
            self.agents.fail_next = True
            started = len(self.record.of(Rollout))

            def loses() -> bool:
                """A rollout is open, which is answered once the pod has weights again, and there are some to lose."""
                return len(self.record.of(Rollout)) > started and self.vllm.lose(2)

            if self.agents.syncs:
                process.until(loses, self.seconds)
            process.until(lambda: process.ended, max(0.0, deadline - time.monotonic()))
            process.wait(self.record, 0.0, self.place.termination_log)
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _start(self, attempt: int) -> Process:
        self.place.termination_log.unlink(missing_ok=True)
        self.agents.attempt = attempt
        self.record.add(Started(attempt))
        return Process(self.command, self.place.environment(attempt, self.ports), self.log)

    def _open(self, servers: contextlib.ExitStack) -> None:
        asks: list[Ask] = [self.vllm.ask, *map(self.agents.of, AGENTS)]
        for bound, ask in zip(self.sockets, asks, strict=True):
            token = RUN_TOKEN if bound is self.sockets[0] else ""  # vLLM, whose control routes ask for it
            self.servers.append(Server(bound, ask, token, OPEN_POSTS))
            servers.callback(self.servers[-1].close)
        self.record.add(ServersUp())

    def _settle(self) -> None:
        """Until all is noted that the ended process asked for: it is not the next one's."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        if not all(server.settle(max(0.1, deadline - time.monotonic())) for server in self.servers):
            raise TrialError(
                f"a request of attempt 1 was still open {_SETTLE_SECONDS:.0f} s after its process ended: "
                "let the trainer end what it starts"
            )

    def _speaks(self) -> bool:
        return any(look.progress is not None for look in self.record.of(Look))

    def _has_trained(self) -> bool:
        """Whether it says that a step is done; of one that says nothing, whether a good many rollouts are."""
        steps = [look.progress.step for look in self.record.of(Look) if look.progress is not None]
        return max(steps) > 0 if steps else self.agents.answered >= 8


def _grace_seconds(spec: GymTrainingRunSpec) -> float:
    """Between SIGTERM and SIGKILL, as the pod has it."""
    pod = (spec.trainer.template or {}).get("spec") or {}
    return float(pod.get("terminationGracePeriodSeconds", TRAINER_GRACE_SECONDS))


@contextlib.contextmanager
def _gateway_server(gateway: Gateway) -> Iterator[str]:
    """The host that the gateway's stand-in listens on."""
    for host in GATEWAY_HOSTS:
        with contextlib.suppress(OSError):
            server = Server(reserved(host, GATEWAY_PORT), gateway.ask)
            break
    else:
        raise TrialError(f"port {GATEWAY_PORT} is taken on every address: another program listens on all of them")
    try:
        yield host
    finally:
        server.close()


def reserved(host: str, port: int = 0) -> socket.socket:
    """A socket that has an address of its own, and refuses connections until it listens.

    Raises:
        OSError: the port is taken.
    """
    bound = socket.socket()
    try:
        if port:  # else it might be one that another socket has and doesn't listen on yet
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _trainers_port() -> int:
    """A port that is free, and that no connection gets by chance before the trainer listens on it."""
    for port in random.sample(_TRAINERS_PORTS, len(_TRAINERS_PORTS)):
        with contextlib.suppress(OSError), reserved("", port):
            return port
    raise TrialError(f"no port from {_TRAINERS_PORTS.start} to {_TRAINERS_PORTS.stop - 1} is free")
