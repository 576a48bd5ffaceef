"""Chaos by seed: `python -m tests.chaos api --faults 200 --seed 1`.

`api` needs no cluster: kube-apiserver, etcd and the controllers are real (`dev/run binaries`), the pods are played.
`cluster` breaks the development cluster of this machine (KUBECONFIG), with the real images and two tiny runs at a time.
Fails where a run ended for no reason that its faults explain, something hangs, is left over or is there twice, or the
operator grows.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

from tests.chaos import api, cluster

_OUT = Path(__file__).parents[2] / "out" / "chaos"


def main() -> int:
    """1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("half", choices=["api", "cluster"])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--runs", type=int, default=None, help="at a time (default: 20; on the cluster 2)")
    parser.add_argument("--seed", type=int, default=None, help="of everything that is drawn (default: a new one)")
    options = parser.parse_args()
    seed = random.randrange(1 << 16) if options.seed is None else options.seed
    folder = _OUT / f"{options.half}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["KUBECACHEDIR"] = str(folder / "kubectl-cache")  # one of an earlier server on the same port would lie
    play, usual = {"api": (api.play, 20), "cluster": (cluster.play, 2)}[options.half]
    runs = options.runs or usual
    print(f"{options.half}: {options.faults} faults, seed {seed}, {runs} runs at a time; {folder}", flush=True)
    began = time.monotonic()
    outcome = asyncio.run(play(folder, seed, options.faults, runs))
    outcome.seconds = time.monotonic() - began
    (folder / "outcome.json").write_text(json.dumps(outcome.document(), indent=1))
    print(f"{sum(outcome.faults.values())} faults: {dict(outcome.faults.most_common())}")
    print(f"{outcome.runs} runs: {dict(outcome.ends.most_common())}; {outcome.seconds / 60:.1f} minutes")
    for note in [*outcome.notes, f"memory: {outcome.memory}"]:
        print(note)
    for text in outcome.wrong:
        print(f"WRONG: {text}", file=sys.stderr)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
