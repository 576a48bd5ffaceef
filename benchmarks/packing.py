"""Packing the samples of one optimizer step: TRL's own way beside ours, on made-up samples.

    PYTHONPATH=api:tracing:trainer:. python -m benchmarks.packing [512x32768] [4096x256]

Needs torch and TRL, so it runs in the image `trainer` (or `runtime`, which that is made of), with the repository as
working directory. TRL's way keeps an object for each token: 512 samples of 32,768 tokens take it 7 GiB.

Both get the same packed sequences, one for each of 16 ranks. TRL builds and packs the trees of all of them on rank 0
(its planner builds them once before, which is not measured here). Ours plans on rank 0, and each rank packs its own.
Times are CPU seconds. Each measurement has a process of its own; memory is what its peak adds to the samples.
"""

import argparse
import itertools
import sys
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from trl.experimental.async_grpo.packing import TreeRow

from benchmarks.report import Result, as_table
from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.trl.packing import pack
from gymtrain_trainer.trl.planning import MicroBatch, plan
from gymtrain_trainer.trl.prefixes import Integers

_RANKS = 16
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Shape:
    """A step. `length`: tokens of a sample, of which its group shares the first, as many as `prompt`."""

    groups: int
    group_size: int
    prompt: int
    length: int


_SHAPES = {"512x32768": Shape(16, 32, 2048, 32_768), "4096x256": Shape(256, 16, 64, 256)}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("shapes", nargs="*", choices=[*_SHAPES, []], help="samples x tokens (default: all)")
    results = []
    for name in parser.parse_args().shapes or list(_SHAPES):
        for measure in (_trl, _ours):
            print(f"== {name}, {measure.__name__.strip('_')}", file=sys.stderr, flush=True)
            results += [Result(f"packing, {name}", *figure) for figure in _apart(measure, _SHAPES[name])]
    print(as_table(results))


type Step = list[list[TrainingSample]]  # groups
type Figures = list[tuple[str, float, str]]
type Measure = Callable[[Step], Figures]


def _trl(step: Step) -> Figures:
    rows = [[_as_trl_has_it(sample) for sample in one.samples] for one in _planned(step).by_rank]
    before = _reset_peak()
    began = time.process_time()
    trees = []
    for row in rows:
        trees.append(TreeRow())
        for sample in row:
            trees[-1].add(sample)
    added = time.process_time()
    packed = [tree.pack() for tree in trees]
    ended = time.process_time()
    return [
        ("TRL, add", added - began, "s"),
        ("TRL, pack", ended - added, "s"),
        ("TRL, memory", _peak() - before, "MiB"),
        ("TRL, tokens", sum(one["input_ids"].numel() for one in packed) / 1e6, "M"),
    ]


def _ours(step: Step) -> Figures:
    before = _reset_peak()
    began = time.process_time()
    micro_batch = _planned(step)
    ends = [time.process_time()]
    planning = _peak() - before
    before = _reset_peak()
    tokens = []
    for one in micro_batch.by_rank:
        packed = pack(
            one.samples,
            [sample.reward for sample in one.samples],
            global_n_tokens=one.trained_tokens,
            global_n_forward_tokens=one.unique_tokens,
            mean_seq_len=one.unique_tokens / len(one.samples),
        )
        tokens.append(packed["input_ids"].numel())
        ends.append(time.process_time())
    return [
        ("ours, plan", ends[0] - began, "s"),
        ("ours, pack on one rank", max(end - begin for begin, end in itertools.pairwise(ends)), "s"),
        ("ours, pack for all ranks", ends[-1] - ends[0], "s"),
        ("ours, memory of plan", planning, "MiB"),
        ("ours, memory of pack on one rank", _peak() - before, "MiB"),
        ("ours, tokens", sum(tokens) / 1e6, "M"),
    ]


def _planned(step: Step) -> MicroBatch:
    samples = sum(map(len, step))
    (one,) = plan(step, processes=_RANKS, per_device=samples // _RANKS)
    return one


def _as_trl_has_it(sample: TrainingSample) -> dict[str, Any]:
    return {
        "input_ids": np.asarray(sample.token_ids),
        "completion_mask": np.asarray(sample.mask, dtype=np.int64),
        "old_log_probs": np.asarray(sample.log_probs),
        "advantage": sample.reward,
        "group_id": sample.group_id,
    }


def _make(shape: Shape) -> Step:
    """The groups of a step, of random tokens."""
    random = np.random.default_rng(0)
    answer = shape.length - shape.prompt
    mask = array("b", bytes(shape.prompt) + b"\1" * answer)

    def tokens(number: int) -> Integers:
        return random.integers(0, 150_000, number, dtype=np.int64)

    def sample(group_id: int, prompt: Integers) -> TrainingSample:
        return TrainingSample(
            token_ids=array("q", np.concatenate([prompt, tokens(answer)]).tobytes()),
            mask=mask,
            log_probs=array("f", np.zeros(shape.length, dtype=np.float32).tobytes()),
            versions=(1,),
            group_id=group_id,
            rollout=0,
            agent="made_up",
            reward=0.5,
        )

    groups = []
    for group_id in range(shape.groups):
        prompt = tokens(shape.prompt)
        groups.append([sample(group_id, prompt) for _ in range(shape.group_size)])
    return groups


# --- processes ---


def _apart(measure: Measure, shape: Shape) -> Figures:
    """What `measure` returns in a process of its own, with a step of this shape."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return process.submit(_made_and_measured, measure, shape).result()


def _made_and_measured(measure: Measure, shape: Shape) -> Figures:
    return measure(_make(shape))


def _reset_peak() -> float:
    """Resident MiB of this process, from which its peak counts from now on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    """Most MiB that were resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / _MIB


if __name__ == "__main__":
    main()
