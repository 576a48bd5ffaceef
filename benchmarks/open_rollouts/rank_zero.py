"""The process that is measured: a run's rollout worker as rank 0 makes it, and a thread that takes what it makes.

    python -m benchmarks.open_rollouts.rank_zero LOAD FOLDER HOST PORT

The main thread plays the trainer as framework.py has it: takes the groups of a step, ends the step, tells the new
weights. It trains on nothing, so it waits for rollouts all the time. It prints a line of JSON after each step, and goes
on once it has got a line back: meanwhile the process is looked at from outside.
"""

import argparse
import json
import logging
import os
import queue
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.open_rollouts.load import Load
from gymtrain_api.wiring import RunConfig
from gymtrain_trainer import open_files
from gymtrain_trainer.context import Context, read_context
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.framework import SampleGroup, TrainingSettings
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.build import make_worker, read_tasks
from gymtrain_trainer.rollouts.guard import Versions
from gymtrain_trainer.rollouts.pace import Bounds, Lead, StepWait
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.weights import SyncNumbers, SyncStats
from tests.unit.trainer.trainer_data import write_dataset, write_index

_ROWS = 256
_QUESTION = "x" * 2000  # characters of a row's prompt
_WAIT_SECONDS = 5.0
_SEED = 1
_SPARE = 1.5  # times the groups that hold the open rollouts: those that wait for their last rollout hold none


class Pods:
    """Weight sync as the guard sees it: one server, which always has the last weights."""

    def __init__(self) -> None:
        self.stats = SyncStats()
        self.label = ""

    async def pod_versions(self) -> Versions:
        """What vLLM holds."""
        return {"http://vllm": self.label}


@dataclass
class Trained:
    """Which rollouts were trained on. A bit each: what is measured here is the growth of this process."""

    load: Load
    rollouts: int
    twice: int = 0
    wrong: int = 0  # with other tokens than were sent
    count: int = 0
    _seen: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._seen = bytearray(2 * self.rollouts // 8 + 1)  # twice as many, for those that are asked for again

    def take(self, group: SampleGroup) -> None:
        """A group."""
        sampled = self.load.turns * self.load.sampled
        for sample in group.samples:
            number = sample.token_ids[0]
            self.wrong += len(sample.token_ids) != self.load.tokens or sample.trained_tokens != sampled
            place, bit = number >> 3, 1 << (number & 7)
            if self._seen[place] & bit:
                self.twice += 1
            else:
                self.count += 1
            self._seen[place] |= bit


class Training:
    """The trainer's part."""

    def __init__(self, load: Load, context: Context, stand_in: str) -> None:
        """`stand_in`: URL of the agents."""
        self._load = load
        self._stand_in = stand_in
        self._pods = Pods()
        self._numbers = SyncNumbers(context.run.name, context.attempt)
        self._board = ProgressBoard()
        self.warm_steps = warm_steps(load)
        self._steps = self.warm_steps + -(-load.generations * load.rollouts // load.step)
        self.rollouts = self._steps * load.step
        self._trained = Trained(load, self.rollouts)
        settings = TrainingSettings(
            group_size=load.group_size,
            groups_per_step=load.groups_per_step,
            max_sample_tokens=None,
            max_steps=self._steps,
            sync_every_steps=1,
            fork_threshold=0,
            temperature=1.0,
            max_completion_tokens=load.sampled,
            seed=_SEED,
        )
        tasks = read_tasks(context, _SEED)
        self.worker: RolloutWorker = make_worker(
            context, self._board, tasks, self._pods, self._numbers, settings, Place(), 0
        )

    def run(self) -> Iterator[dict[str, Any]]:
        """Trains; what there is to say after each step."""
        self._sync(None)
        self.worker.start()
        try:
            for step in range(1, self._steps + 1):
                self._take()
                self.worker.use()
                self._sync(self._load.seconds if step == self.warm_steps else None)
                while not self.worker.metrics.empty():
                    self.worker.metrics.get_nowait()
                yield {"step": step, "trained": self._trained.count}
        finally:
            self.worker.stop()

    def _take(self) -> None:
        """The groups of a step; none of them outlives it."""
        groups = 0
        while groups < self._load.groups_per_step:
            try:
                self._trained.take(self.worker.buffer.get(_WAIT_SECONDS))
                groups += 1
            except queue.Empty:
                self.worker.check_health()

    def _sync(self, seconds: float | None) -> None:
        """New weights. `seconds`: that rollouts take from now on, where that changes."""
        label = self._numbers.label(self._numbers.model_versions + 1)
        body = {"label": label} | ({} if seconds is None else {"seconds": seconds})
        request = urllib.request.Request(f"{self._stand_in}/tell", json.dumps(body).encode(), method="POST")  # noqa: S310 - an address of this machine
        with urllib.request.urlopen(request, timeout=60):  # noqa: S310  an address of this machine
            self._pods.label = label
            self._numbers.sent(label)
            self._numbers.arrived(self._numbers.next())
        self.worker.update_model_version(self._numbers.model_versions)

    def ended(self) -> dict[str, Any]:
        """What became of the rollouts."""
        return {
            "trained": self._trained.count,
            "trained_twice": self._trained.twice,
            "wrong": self._trained.wrong,
            "dropped_groups": {str(reason): count for reason, count in self.worker.dropped.items()},
            "failed_rollouts": {loss.kind: count for loss, count in self._board.lost().items()},
        }


def warm_steps(load: Load) -> int:
    """Steps until a trainer that always waits has as many groups as it takes to keep all rollouts open."""
    bounds = Bounds(load.group_size, load.groups_per_step, 1, load.staleness, load.rollouts)
    wanted, lead, steps = _SPARE * load.rollouts / load.group_size, Lead(), 0
    while lead.groups < wanted and (after := lead.after(StepWait(1.0, 0), load.groups_per_step, bounds)) != lead:
        lead, steps = after, steps + 1
    return steps


def prepare(root: Path, load: Load, host: str, port: int) -> Context:
    """A run's files, and where the trainer finds what it needs."""
    for folder in ("data", "checkpoints", "scratch"):
        (root / folder).mkdir(parents=True)
    prompts = ([{"role": "user", "content": f"{number} {_QUESTION}"}] for number in range(_ROWS))
    rows = [{"responses_create_params": {"input": prompt}} for prompt in prompts]
    write_index(root / "data", write_dataset(root / "data", rows, agent="stand_in"))
    run = RunConfig.model_validate(
        {
            "name": "bench",
            "namespace": "bench",
            "uid": "u1",
            "spec": {
                "model": {"source": "pvc://models/model"},
                "gym": {"configPaths": ["stand_in.yaml"]},
                "data": {"train": [{"source": "gym://stand_in"}]},
                "rollout": {
                    "maxConcurrent": load.rollouts,
                    "timeoutSeconds": 3600,
                    "maxStaleness": load.staleness,
                    "stallTimeoutSeconds": 600,
                },
            },
            "inference_url": f"http://{host}",
            "inference_pods_host": host,
            "gateway_url": f"http://{host}",
            "gateway_pods_host": host,
            "trainer_host": host,
            "agents": {"stand_in": f"http://{host}:{port}"},
        }
    )
    (root / "run.json").write_text(run.model_dump_json(by_alias=True))
    return read_context({"GYMTRAIN_RUN_CONFIG": str(root / "run.json"), "GYMTRAIN_ROOT": str(root)})


def _say(**line: Any) -> None:
    """Prints, and waits until that was read."""
    print(json.dumps(line), flush=True)
    sys.stdin.readline()


def main() -> None:
    """Trains to the end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_rollouts.rank_zero", description=__doc__)
    parser.add_argument("load", type=Load.from_text)
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    load: Load = options.load
    if load.files:
        open_files.raise_files()
        # What the trainer keeps free is twice what rollouts need while all agents have one address.
        setattr(open_files, "raise_files", lambda: load.files)  # noqa: B010 - mypy forbids the assignment
    context = prepare(options.folder, load, options.host, options.port)
    training = Training(load, context, context.run.agents["stand_in"])
    _say(event="begin", rollouts=training.rollouts, warm_steps=training.warm_steps)
    for line in training.run():
        _say(event="step", **line)
    _say(event="end", **training.ended())
    sys.stdout.flush()
    os._exit(0)  # all is said; a gigabyte of objects needs no taking apart


if __name__ == "__main__":
    main()
