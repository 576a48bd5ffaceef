"""Rollouts whose tasks have an image each: with the trainer's announcements, and without.

The trainer's own parts draw and announce: `Tasks`, `Positions`, `Announcer`. The images are those of examples/swe under
many names, so that no two tasks share one but none has to be pulled: what is saved is the pods' start alone.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.sandboxes import execs, ours
from benchmarks.sandboxes.kube import Kube
from benchmarks.sandboxes.places import REAL, namespace
from benchmarks.sandboxes.sheet import Figure
from dev.cluster.containerd import ctr
from dev.settings import Settings
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.data.rows import Tasks, read_index
from gymtrain_trainer.rollouts.announce import Announcer
from gymtrain_trainer.rollouts.positions import Positions
from tests.unit.trainer.trainer_data import question, write_dataset, write_index

_TASKS, _DRAWN = 60, 36
_CONCURRENT = 6  # rollouts
_ACTIONS, _THINKING = 10, 0.5  # of a rollout; seconds of the model before each
_AHEAD = 12
_AGENT = "adder"  # of the rows


@dataclass
class Rollouts:
    """What came of them."""

    waits: list[float]  # for the sandbox
    seconds: list[float]  # of each rollout
    whole: float
    found: dict[str, int]
    load: float


async def measure(kube: Kube) -> list[Figure]:
    """Both, one after the other."""
    done: dict[str, Rollouts] = {}
    with _images() as images:
        for name, tasks in (("ours", _AHEAD), ("ours, no look-ahead", 0)):
            async with (
                namespace(kube, "bench-ours") as space,
                ours.broker(kube, space, REAL, lookAhead={"tasks": tasks}) as broker,
            ):
                done[name] = await _train(broker, images)
            print(f"   {name}: {done[name].found}, {done[name].whole:.0f} s, load {done[name].load:.1f}", flush=True)
    load = {name: one.load for name, one in done.items()}

    def figure(what: str, unit: str, value: dict[str, float]) -> Figure:
        return Figure(f"per-task images: {what}", unit, value, None, load)

    return [
        figure("claims that found their sandbox ready", "%", {n: _share(one, "ready") for n, one in done.items()}),
        figure("claims that found it starting", "%", {n: _share(one, "starting") for n, one in done.items()}),
        figure("wait for the sandbox, mean", "s", {n: _mean(one.waits) for n, one in done.items()}),
        figure("a rollout, mean", "s", {n: _mean(one.seconds) for n, one in done.items()}),
        figure(f"all {_DRAWN} rollouts", "s", {n: one.whole for n, one in done.items()}),
    ]


async def _train(broker: ours.Ours, images: Sequence[str]) -> Rollouts:
    """The rollout worker's loop: draw, announce what comes next, roll out."""
    rows = [question(n) | {"instance_id": f"task-{n}", "image_name": image} for n, image in enumerate(images)]
    done = Rollouts([], [], 0.0, {}, 0.0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        index = read_index(write_index(folder, write_dataset(folder, rows, agent=_AGENT)))
        tasks, positions = Tasks(index, {_AGENT: "http://agent"}, seed=1), Positions(Place())
        gate = asyncio.Semaphore(_CONCURRENT)
        began = time.perf_counter()

        async with Announcer(broker.url, tasks, 1, broker.token_file) as announcer:
            announcer.drawn(positions.upcoming(announcer.rows_ahead))

            async def rollout() -> None:
                async with gate:
                    row = tasks.at(positions.draw()).row
                    announcer.drawn(positions.upcoming(announcer.rows_ahead))
                    await _roll_out(broker, row["image_name"], row["instance_id"], done)

            await asyncio.gather(*(rollout() for _ in range(_DRAWN)))
        done.whole, done.found, done.load = time.perf_counter() - began, await broker.found(), os.getloadavg()[0]
        tasks.close()
    return done


async def _roll_out(broker: ours.Ours, image: str, task: str, done: Rollouts) -> None:
    began = time.perf_counter()
    held = await broker.claim(image, task)
    done.waits.append(time.perf_counter() - began)
    for _ in range(_ACTIONS):
        await asyncio.sleep(_THINKING)
        await execs.by_daemon(broker.http, held, ["true"])
    await broker.close(held)
    done.seconds.append(time.perf_counter() - began)


@contextmanager
def _images() -> Iterator[list[str]]:
    """Names of images, as many as tasks, in the store of the cluster that dev/ makes."""
    settings = Settings()
    present = ctr(settings, "images", "list", "--quiet").split()
    swe = [one for one in present if one.startswith("docker.io/gymtrain/swe-") and one.endswith(":dev")]
    if not swe:
        raise RuntimeError("the images of examples/swe are not in the cluster: run `dev/run images`")
    names = [f"docker.io/gymtrain/task-{number}:dev" for number in range(_TASKS)]
    for number, name in enumerate(names):
        ctr(settings, "images", "tag", "--force", swe[number % len(swe)], name)
    try:
        yield names
    finally:
        ctr(settings, "images", "remove", *names, check=False)


def _share(done: Rollouts, found: str) -> float:
    return 100 * done.found.get(found, 0) / _DRAWN


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
