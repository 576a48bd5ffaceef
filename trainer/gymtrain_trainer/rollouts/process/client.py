"""The trainer's side of the rollouts' process."""

import asyncio
import contextlib
import itertools
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import assert_never

from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import GroupDroppedError, WorkerDiedError
from gymtrain_trainer.rollouts.evaluate import Evaluated
from gymtrain_trainer.rollouts.group import Group, GroupEvents
from gymtrain_trainer.rollouts.guard import WeightState
from gymtrain_trainer.rollouts.process.messages import (
    AskLook,
    Begin,
    Broken,
    Dropped,
    Ended,
    EndEvaluation,
    Evaluate,
    EvaluationEnded,
    Looked,
    NewVersion,
    RolloutLost,
    Running,
    ToRunner,
    ToTrainer,
    TryFailed,
)
from gymtrain_trainer.rollouts.runner import RunnerSettings
from gymtrain_trainer.weights import SyncNumbers

log = logging.getLogger(__name__)

_MODULE = __package__
_END_SECONDS = 5.0


class RolloutProcess:
    """`Groups` in a process of their own; but for `launch`, lives in the worker's event loop."""

    def __init__(self, settings: RunnerSettings, numbering: SyncNumbers, state: WeightState) -> None:
        """Starts nothing yet.

        Args:
            settings: of the run.
            numbering: of the weights' versions.
            state: of the weights, for the guard.
        """
        self._settings = settings
        self._numbering = numbering
        self._state = state
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: GroupEvents | None = None
        self._open: dict[int, asyncio.Future[Group]] = {}
        self._evaluations: dict[int, asyncio.Future[Evaluated]] = {}
        self._evaluated = itertools.count(1)
        self._begun = 0  # groups
        self._told = 0  # the last model version
        self._seen = Running(0, 0)
        self._looking: asyncio.Task[None] | None = None
        self._error: WorkerDiedError | None = None

    def launch(self) -> None:
        """Starts the process, which takes a second to be ready; once, from any thread."""
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: who ends the trainer's process group would end it in the middle of a step.
            self._process = subprocess.Popen(
                [sys.executable, "-m", str(_MODULE), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        self._send(self._settings)

    @asynccontextmanager
    async def open(self, events: GroupEvents) -> AsyncIterator["RolloutProcess"]:
        """Ready to run groups; the process ends at the end. `events`: told of failures."""
        if self._connection is None:
            self.launch()
        assert self._connection is not None
        loop, number = asyncio.get_running_loop(), self._connection.fileno()
        self._loop, self._events = loop, events
        loop.add_reader(number, self._readable)
        try:
            yield self
        finally:
            loop.remove_reader(number)
            if self._looking is not None:
                self._looking.cancel()
            await asyncio.to_thread(self._end)

    @property
    def running(self) -> int:
        """Rollouts that run now, those of groups that the process hasn't begun yet among them."""
        return self._seen.rollouts + (self._begun - self._seen.begun) * self._settings.rules.group_size

    def update_model_version(self, model_version: int) -> None:
        """The trainer's version from now on."""
        for version in range(self._told + 1, model_version + 1):
            self._send(NewVersion(version, self._numbering.label(version)))
        self._told = max(self._told, model_version)

    async def run(self, task: Task) -> Group:
        """One group.

        Raises:
            GroupDroppedError: it can't be used.
            WorkerDiedError: the process has ended.
        """
        if self._error is not None:
            raise self._error
        self._begun += 1
        number = self._begun
        ended: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self._open[number] = ended
        try:
            self._send(Begin(number, task))
            return await ended
        finally:
            self._open.pop(number, None)

    async def evaluate(self, task: Task, version: int) -> Evaluated:
        """One rollout of an evaluation of that model version.

        Raises:
            WorkerDiedError: the process has ended.
        """
        if self._error is not None:
            raise self._error
        number = next(self._evaluated)
        ended: asyncio.Future[Evaluated] = asyncio.get_running_loop().create_future()
        self._evaluations[number] = ended
        self._send(Evaluate(number, task, version))
        try:
            return await ended
        except asyncio.CancelledError:
            self._send(EndEvaluation(number))
            raise
        finally:
            self._evaluations.pop(number, None)

    def _send(self, message: ToRunner | RunnerSettings) -> None:
        """Waits while the socket is full: the other side reads in its loop, and writes in a thread."""
        assert self._connection is not None
        try:
            self._connection.send(message)
        except OSError:  # it ended; what it wrote before says why, or how it ended
            self._readable()

    def _readable(self) -> None:
        assert self._connection is not None
        try:
            while self._error is None and self._connection.poll():
                self._heard(self._connection.recv())
        except (EOFError, OSError):
            if self._loop is not None:
                self._loop.remove_reader(self._connection.fileno())  # a closed socket can always be read
            self._fail(self._how_it_ended())

    def _heard(self, message: ToTrainer) -> None:
        assert self._events is not None
        match message:
            case Ended(number, group):
                if (ended := self._waited_for(number)) is not None:
                    ended.set_result(group)
            case Dropped(number, reason, why, rollouts):
                if (ended := self._waited_for(number)) is not None:
                    error = GroupDroppedError(reason, why)
                    error.rollouts = rollouts
                    ended.set_exception(error)
            case EvaluationEnded(number, evaluated):
                rollout = self._evaluations.get(number)
                if rollout is not None and not rollout.done():
                    rollout.set_result(evaluated)
            case Running():
                self._seen = message
                self._events.rollouts_running(self.running)
            case TryFailed(why):
                self._events.rollout_failed(why)
            case RolloutLost(agent, lost):
                self._events.rollout_lost(agent, lost)
            case AskLook():
                self._looking = asyncio.create_task(self._look())
            case Broken(why):
                self._fail(why)
            case _:
                assert_never(message)

    def _waited_for(self, number: int) -> asyncio.Future[Group] | None:
        """The group's end, where somebody still waits for it."""
        ended = self._open.get(number)
        return ended if ended is not None and not ended.done() else None

    async def _look(self) -> None:
        try:
            look = await self._state.look()
        except Exception as error:
            log.exception("the vLLM servers' weight versions could not be asked for")
            self._fail(repr(error))
        else:
            self._send(Looked(look))

    def _fail(self, why: str) -> None:
        """No group ends any more."""
        if self._error is not None:
            return
        self._error = WorkerDiedError(f"the rollouts' process died: {why}")
        groups, rollouts = self._open.values(), self._evaluations.values()
        for group in groups:
            if not group.done():
                group.set_exception(self._error)
        for rollout in rollouts:
            if not rollout.done():
                rollout.set_exception(self._error)

    def _how_it_ended(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_END_SECONDS)
            if code == -9:
                return "it was killed (SIGKILL): the container may lack memory (spec.trainer.template)"
            return f"it ended with code {code}; its last lines are in this log"
        return "it closed its socket"

    def _end(self) -> None:
        assert self._connection is not None
        assert self._process is not None
        self._connection.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
