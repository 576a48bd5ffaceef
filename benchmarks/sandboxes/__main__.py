"""`python -m benchmarks.sandboxes [PART ...]`: runs parts one after another and prints a table; `--help` lists them."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import yaml

from benchmarks.sandboxes import ahead, claims, execs, many
from benchmarks.sandboxes.kube import Kube, connect
from benchmarks.sandboxes.load import until
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
        if not await _serves(kube, _THEIRS):
            raise SystemExit(f"error: the cluster does not serve {_THEIRS}: dev/run addon agent-sandbox")
        if not await _serves(kube, labels.API_VERSION):
            await _install(kube)
        for part in parts:
            began = time.monotonic()
            print(f"== {part}", file=sys.stderr, flush=True)
            found = await _PARTS[part](kube)
            print(as_json(found), flush=True)
            print(f"== {part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            figures += found
    return figures


async def _serves(kube: Kube, group: str) -> bool:
    try:
        await kube.get(f"/apis/{group}")
    except KeyError:
        return False
    return True


async def _install(kube: Kube) -> None:
    """The CRD alone: pods need an owner, but nobody has to run it."""
    for file in sorted((Path(__file__).parents[2] / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await kube.apply(f"{path}/{crd['metadata']['name']}", crd)
    await until(lambda: _serves(kube, labels.API_VERSION), "the CRD is served", 30)


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
