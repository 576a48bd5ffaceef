"""The whole chain against TRL's own trainer, on two GPUs: vLLM on the first, training on the second.

    export PYTHONPATH=api:kube:tracing:trainer:gateway:inference:.
    python3 -m benchmarks.gpu.chain --model FOLDER [--slow rollouts]

Same model, rows, batch, staleness and attention (chains.py says what runs on each side). One chain after another, for
their times; curves.py runs them beside each other, for what they learn. Prints one line of JSON a run; logs are in
$OUT/logs.zip.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.chain.chains import TRL_STALENESS, Chain, Side, keep_logs, run
from benchmarks.gpu.chain.task import ANSWER_TOKENS, Slow

# Options that TRL's side doesn't have.
_OURS = ("replicas", "tensor_parallel", "ranks", "transport", "answer_tokens", "micro_batches", "memory")


def main() -> int:
    """Runs what was asked for; a run that fails is reported with the end of its log, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sides", nargs="*", choices=("ours", "trl"), default=["ours", "trl"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="rollouts of a step")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--slow", nargs="*", choices=("none", "rollouts", "rows"), default=["none"])
    parser.add_argument("--staleness", type=int, default=TRL_STALENESS, help=f"of ours; TRL's is {TRL_STALENESS}")
    parser.add_argument("--in-flight", type=int, default=512, help="rollouts")
    parser.add_argument(
        "--trl-in-flight", type=int, default=128, help="rollouts of TRL's side, with which it is fastest"
    )
    parser.add_argument("--trl-queue", type=int, default=128, help="its samples that wait")
    parser.add_argument("--correction", default="None")
    parser.add_argument(
        "--cache-gib", type=float, help="vLLM's key-value cache; name it where something else runs on its GPU"
    )
    parser.add_argument("--api-servers", type=int, default=1, help="processes of vLLM (0.32) that answer calls")
    parser.add_argument(
        "--seconds", type=float, default=210.0, help="the most that one run takes, vLLM's start included"
    )
    several = parser.add_argument_group("for a large model over several GPUs, of ours alone")
    several.add_argument("--replicas", type=int, default=1, help="servers of vLLM, on the first GPUs")
    several.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of each")
    several.add_argument("--ranks", type=int, default=1, help="GPUs that train, the next ones; sharded if several")
    several.add_argument("--transport", choices=("NCCL", "HTTPFull", "LoRAFilesystem"), default="NCCL")
    several.add_argument("--answer-tokens", type=int, default=ANSWER_TOKENS)
    several.add_argument("--micro-batches", type=int, default=1, help="of a step, on each GPU")
    several.add_argument("--memory", type=float, default=0.4, help="share of each GPU's memory for vLLM")
    options = parser.parse_args()
    if options.sides != ["ours"] and (
        named := [f"--{name.replace('_', '-')}" for name in _OURS if getattr(options, name) != parser.get_default(name)]
    ):
        parser.error(f"{', '.join(named)}: TRL's side has none of these, say --sides ours")
    out = Path(os.environ.get("OUT", "."))
    with tempfile.TemporaryDirectory(prefix="logs-") as work:
        for slow in options.slow:
            for seed in options.seeds:
                for side in options.sides:
                    _report(_chain(options, side, slow, seed), Path(work), out)
    return 0


def _chain(options: argparse.Namespace, side: Side, slow: Slow, seed: int) -> Chain:
    same: dict[str, Any] = {
        name: getattr(options, name) for name in ("model", "steps", "batch", "seconds", "api_servers")
    }
    cache = None if options.cache_gib is None else int(options.cache_gib * 2**30)
    same |= {"side": side, "slow": slow, "seed": seed, "cache_bytes": cache}
    if side == "trl":
        return Chain(**same, in_flight=options.trl_in_flight, queue=options.trl_queue)
    same |= {name: getattr(options, name) for name in _OURS}
    return Chain(**same, in_flight=options.in_flight, staleness=options.staleness, correction=options.correction)


def _report(chain: Chain, work: Path, out: Path) -> None:
    began = time.monotonic()
    try:
        found = run(chain, work / chain.name)
    except Exception as error:
        found = {"side": chain.side, "error": f"{type(error).__name__}: {error}"[-3000:]}
    keep_logs(work / chain.name, out / "logs.zip")
    found |= {"slow": chain.slow, "seed": chain.seed, "whole_seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
