"""`python -m benchmarks.sandboxes [PART ...]`: runs parts one after another and prints a table; `--help` lists them."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.sandboxes import ahead, claims, execs, many
from benchmarks.sandboxes.kube import Kube, connect
from benchmarks.sandboxes.sheet import Figure, as_json, as_table
from gymtrain_api import labels

_THEIRS = "extensions.agents.x-k8s.io/v1beta1"
_PARTS: dict[str, Callable[[Kube], Awaitable[list[Figure]]]] = {
    "exec": execs.measure,
    "claims": claims.real,
    "hundred": many.hundred,
    "ahead": ahead.measure,
    "rate": claims.rate,
    "fleet": many.fleet,
}


async def _measure(kubeconfig: Path, parts: Sequence[str]) -> list[Figure]:
    figures: list[Figure] = []
    async with connect(kubeconfig) as kube:
        for group, what in ((labels.API_VERSION, "the CRDs: dev/install.sh"), (_THEIRS, "dev/run addon agent-sandbox")):
            try:
                await kube.get(f"/apis/{group}")
            except KeyError:
                raise SystemExit(f"error: the cluster does not serve {group}; install {what}") from None
        for part in parts:
            began = time.monotonic()
            print(f"== {part}", file=sys.stderr, flush=True)
            found = await _PARTS[part](kube)
            print(as_json(found), flush=True)
            print(f"== {part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            figures += found
    return figures



def main() -> int:
    """2 without a cluster."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandboxes", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help=f"which: {', '.join(_PARTS)} (default: all)")
    parts = parser.parse_args().parts or list(_PARTS)
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        print("error: set KUBECONFIG to the development cluster (make bench-sandboxes does)", file=sys.stderr)
        return 2
    print(as_table(asyncio.run(_measure(Path(kubeconfig), parts))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
