"""Learning curves of many chains beside each other on the same two GPUs; their times say nothing.

    export PYTHONPATH=api:kube:tracing:trainer:gateway:inference:.
    python3 -m benchmarks.gpu.chain.curves --model FOLDER
    python3 -m benchmarks.gpu.chain.curves --model FOLDER --sides ours trl --seeds 1 2 3 --staleness 4 --correction None

The first records maxStaleness 0, 1, 4 and 16 with and without correction, the second ours and TRL's over three seeds.
Every combination is a chain of ours; TRL's has one a seed, with its own staleness and loss. Each has a network of its
own, so this needs root. A chain that fails is reported with the end of its log, and counts with the steps it made.

In $OUT: curves.csv, a row a step, which plot.py draws, and logs.zip.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.gpu.chain import namespace, records
from benchmarks.gpu.chain.chains import TRAINER_LOG, TRL_STALENESS, Chain, keep_logs, run
from benchmarks.gpu.chain.records import Curve
from benchmarks.gpu.chain.task import rows
from gymtrain_api.spec import CorrectionMode

_GPU_SHARE = 0.95  # of the first GPU, for all chains
_ERROR_LENGTH = 1500  # characters; logs.zip has the rest

type Run = Callable[[Chain, Path], dict[str, Any]]


def main() -> int:
    """Records what was asked for; 1 where no chain made a step."""
    options = _options().parse_args()
    chains = grid(options)
    if len(chains) * options.memory > _GPU_SHARE:
        sys.exit(f"{len(chains)} chains with --memory {options.memory} each need more than one GPU has: ask for fewer")
    if options.one_gpu and "trl" in options.sides:
        sys.exit("TRL's weight transfer needs a GPU for each side: leave out --one-gpu, or trl of --sides")
    if refusal := namespace.refusal():
        sys.exit(refusal)
    os.environ.update(namespace.VARIABLES)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(chains))))
    rows()  # before there are threads: two that import reasoning_gym at once can find half of it
    with tempfile.TemporaryDirectory(prefix="logs-") as work:
        curves = record(chains, Path(work), Path(os.environ.get("OUT", ".")), options.stagger)
    print(records.table(curves))
    for comparison in records.comparisons(curves):
        print(comparison)
    return int(not curves)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sides", nargs="+", choices=("ours", "trl"), default=["ours"])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4, 16], help="of ours")
    parser.add_argument(
        "--correction",
        nargs="+",
        choices=get_args(CorrectionMode.__value__),
        default=["None", "TokenTruncate"],
        help="of ours",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=64, help="rollouts of a step")
    parser.add_argument("--slow", choices=("none", "rollouts", "rows"), default="none")
    parser.add_argument("--in-flight", type=int, default=512, help="rollouts of ours")
    parser.add_argument("--trl-in-flight", type=int, default=128, help="rollouts of TRL's")
    parser.add_argument("--trl-queue", type=int, default=128, help="TRL's samples that wait")
    parser.add_argument("--memory", type=float, default=0.08, help="share of the first GPU's, for each vLLM")
    parser.add_argument("--cache-gib", type=float, default=4.0, help="of it, for the key-value cache")
    parser.add_argument("--one-gpu", action="store_true", help="vLLM and training of ours share the first GPU")
    parser.add_argument("--stagger", type=float, default=4.0, help="seconds between starts")
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="the most that each chain takes, its start included"
    )
    return parser


def grid(options: argparse.Namespace) -> list[Chain]:
    """The chains that were asked for, each once."""
    same: dict[str, Any] = {
        name: getattr(options, name) for name in ("model", "steps", "batch", "slow", "memory", "one_gpu")
    }
    same |= {"seconds": options.seconds, "cache_bytes": int(options.cache_gib * 2**30)}
    chains: list[Chain] = []
    for seed in options.seeds:
        if "ours" in options.sides:
            chains += [
                Chain("ours", seed=seed, staleness=staleness, correction=mode, in_flight=options.in_flight, **same)
                for mode in options.correction
                for staleness in options.staleness
            ]
        if "trl" in options.sides:
            theirs = {"in_flight": options.trl_in_flight, "queue": options.trl_queue}
            chains.append(Chain("trl", seed=seed, staleness=TRL_STALENESS, **theirs, **same))
    return list(dict.fromkeys(chains))


def record(chains: Sequence[Chain], work: Path, out: Path, stagger: float, run: Run = run) -> list[Curve]:
    """Runs all chains at once, each in a network of its own; their curves, in the order of `chains`.

    Args:
        chains: of different names.
        work: for logs while they are written.
        out: gets curves.csv and logs.zip, as far as chains have ended.
        stagger: seconds between starts.
        run: runs one.
    """
    curves: dict[str, Curve] = {}
    writing = threading.Lock()

    def one(chain: Chain) -> None:
        folder = work / chain.name
        folder.mkdir(parents=True)
        began = time.monotonic()
        found = _alone(run, chain, folder)
        found["whole_seconds"] = round(time.monotonic() - began, 1)
        with writing:
            if steps := records.steps_of(_lines(folder / TRAINER_LOG)):
                curve = Curve(chain.side, chain.staleness, chain.correction, chain.seed, steps)
                records.append(out / "curves.csv", curve)
                curves[chain.name] = curve
            keep_logs(folder, out / "logs.zip")
            print(json.dumps({"chain": chain.name, "steps": len(steps)} | found), flush=True)

    threads = [threading.Thread(target=one, args=(chain,), name=chain.name) for chain in chains]
    for number, thread in enumerate(threads):
        if number:
            time.sleep(stagger)
        thread.start()
    for thread in threads:
        thread.join()
    return [curves[chain.name] for chain in chains if chain.name in curves]


def _alone(run: Run, chain: Chain, folder: Path) -> dict[str, Any]:
    """What `run` found, or why it failed. Nothing that it started is left."""
    try:
        namespace.enter()
        try:
            return dict(run(chain, folder))
        finally:
            namespace.end_processes()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[-_ERROR_LENGTH:]}


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.exists() else []


if __name__ == "__main__":
    sys.exit(main())
