"""The rollouts' process: `python -m gymtrain_trainer.rollouts.process FD`, started by client.py."""

import asyncio
import gc
import logging
import os
import queue
import sys
import threading
from multiprocessing.connection import Connection
from typing import assert_never

import gymtrain_tracing as tracing
from gymtrain_trainer.errors import GroupDroppedError
from gymtrain_trainer.rollouts.group import GroupRunner, Lost
from gymtrain_trainer.rollouts.guard import Look
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
from gymtrain_trainer.rollouts.runner import RunnerSettings, open_runner
from gymtrain_trainer.weights import SyncNumbers

log = logging.getLogger(__name__)

_RUNNING_SECONDS = 0.005  # between two accounts of what runs


class Runner:
    """Runs the groups that the trainer's process asks for. It is who the runner tells of failures, and asks for the
    state of the weights."""

    def __init__(self, connection: Connection, settings: RunnerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._numbering = SyncNumbers(settings.run, settings.attempt, settings.first_number)
        self._outgoing: queue.SimpleQueue[ToTrainer] = queue.SimpleQueue()
        self._runner: GroupRunner | None = None
        self._groups: set[asyncio.Task[None]] = set()
        self._evaluations: dict[int, asyncio.Task[None]] = {}  # rollouts
        self._begun = 0
        self._telling = False  # an account of what runs is due
        self._looking: asyncio.Future[Look] | None = None
        self._closed = asyncio.Event()

    async def serve(self) -> None:
        """Until the socket closes."""
        loop = asyncio.get_running_loop()
        # In a thread: a trainer that is slow to read must not hold up the rollouts.
        writer = threading.Thread(target=self._write, name="writer", daemon=True)
        writer.start()
        async with open_runner(self._settings, self._numbering, self, self) as runner:
            self._runner = runner
            loop.add_reader(self._connection.fileno(), self._readable)
            await self._closed.wait()
            running = [*self._groups, *self._evaluations.values()]
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    # --- GroupEvents ---

    def rollout_failed(self, error: str) -> None:
        """One try of a rollout failed."""
        self._outgoing.put(TryFailed(error))

    def rollout_lost(self, agent: str, lost: Lost) -> None:
        """A rollout failed for good."""
        self._outgoing.put(RolloutLost(agent, lost))

    def rollouts_running(self, count: int) -> None:
        """So many run now; told a little later, as the count changes often."""
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_later(_RUNNING_SECONDS, self._tell_running)

    # --- WeightState ---

    async def look(self) -> Look:
        """What each vLLM server holds now. The guard asks one question at a time."""
        self._looking = asyncio.get_running_loop().create_future()
        self._outgoing.put(AskLook())
        return await self._looking

    def _tell_running(self) -> None:
        assert self._runner is not None
        self._telling = False
        self._outgoing.put(Running(self._runner.running, self._begun))

    def _readable(self) -> None:
        try:
            while self._connection.poll():
                self._heard(self._connection.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._closed.set()

    def _heard(self, message: ToRunner) -> None:
        assert self._runner is not None
        match message:
            case Begin():
                self._begun = message.number
                group = asyncio.create_task(self._group(message))
                self._groups.add(group)
                group.add_done_callback(self._groups.discard)
            case Evaluate(number):
                rollout = self._evaluations[number] = asyncio.create_task(self._evaluate(message))
                rollout.add_done_callback(lambda _: self._evaluations.pop(number, None))
            case EndEvaluation(number):
                if number in self._evaluations:
                    self._evaluations[number].cancel()
            case NewVersion(model_version, label):
                self._numbering.sent(label)
                self._runner.update_model_version(model_version)
            case Looked(look):
                if self._looking is not None and not self._looking.done():
                    self._looking.set_result(look)
            case _:
                assert_never(message)

    async def _group(self, begin: Begin) -> None:
        assert self._runner is not None
        try:
            group = await self._runner.run(begin.task)
        except GroupDroppedError as error:
            self._outgoing.put(Dropped(begin.number, error.reason, str(error), tuple(error.rollouts)))
        except Exception as error:
            log.exception("a group ended by an error that it should not have")
            self._outgoing.put(Broken(repr(error)))
        else:
            self._outgoing.put(Ended(begin.number, group))

    async def _evaluate(self, wanted: Evaluate) -> None:
        assert self._runner is not None
        try:
            evaluated = await self._runner.evaluate(wanted.task, wanted.version)
        except Exception as error:
            log.exception("a rollout of an evaluation ended by an error that it should not have")
            self._outgoing.put(Broken(repr(error)))
        else:
            self._outgoing.put(EvaluationEnded(wanted.number, evaluated))

    def _write(self) -> None:
        try:
            while True:
                self._connection.send(self._outgoing.get())
        except OSError:  # the trainer ended: so does this process
            return
        except Exception:  # nothing would reach the trainer any more, and its groups would never end
            log.exception("what rollouts made can't be sent to the trainer: their process ends")
            os._exit(1)


def main() -> None:
    """Runs until the trainer's process closes the socket."""
    gc.set_threshold(50_000, 20, 100)  # thousands of rollouts are open at once, and few objects go in circles
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    connection = Connection(int(sys.argv[1]))
    try:
        settings = connection.recv()
    except EOFError:  # the trainer ended first
        return
    tracing.start()
    gc.freeze()
    try:
        asyncio.run(Runner(connection, settings).serve())
    finally:
        tracing.stop()


if __name__ == "__main__":
    main()
