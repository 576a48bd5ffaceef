"""Computes the tables of docs/sizing.md: `python -m gymtrain_trainer.sizing.page [--check] [--root FOLDER]`.

The page's text is written by hand. A table stands between two comments that name it.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gymtrain_trainer.sizing.proposals import on_the_same_gpus
from gymtrain_trainer.sizing.serving import Serving
from gymtrain_trainer.sizing.shapes import BUILT_IN, HALF, ModelShape
from gymtrain_trainer.sizing.training import GIB, Adapter, Training, checkpoints, gpu, host

NAME = "docs/sizing.md"
_LAYOUTS = ((1, 1), (1, 2), (1, 8), (2, 8), (4, 8))  # nodes, GPUs of each
_LENGTHS = (8192, 32768)  # tokens
_RANK = 16
_SERVERS = (1, 2, 4, 8)  # GPUs


@dataclass(frozen=True)
class Measured:
    """A row of the table of training, as it was measured: the most that one training GPU had in use.

    Attributes:
        sharded: by FSDP2.
        gib: by nvidia-smi, so with what CUDA and the allocator hold.
        where: the GPU, and the date.
    """

    shape: str
    nodes: int
    gpus: int
    rank: int  # of the adapter; 0: all weights
    tokens: int  # of a micro-batch
    sharded: bool
    gib: float
    where: str


_H200 = "H200, 2026-11-24"  # docs/recorded/gpu/training.md
_H100 = "H100, 2026-11-25"
_RUNS = "H100, 2026-11-27"  # docs/recorded/gpu/four.md

# The only place for measured rows.
MEASURED: tuple[Measured, ...] = (
    Measured("Qwen3-0.6B", 1, 1, 0, 8192, False, 12.4, _H200),
    Measured("Qwen3-1.7B", 1, 1, 0, 8192, False, 32.9, _H200),
    Measured("Qwen3-4B", 1, 1, 0, 8192, False, 76.7, _H200),
    Measured("Qwen3-4B", 1, 1, _RANK, 8192, False, 22.4, _H200),
    Measured("Qwen3-4B", 1, 2, 0, 8192, True, 39.5, _H100),
    Measured("Qwen3-4B", 1, 2, 0, 32768, True, 50.8, _H100),
    Measured("Qwen3-8B", 1, 2, 0, 2560, True, 77.0, _RUNS),
    Measured("Qwen3-8B", 1, 2, _RANK, 2560, True, 25.3, _RUNS),
)


def page(text: str) -> str:
    """The page with its tables as they are computed now.

    Raises:
        ValueError: the text has no place for a table.
    """
    for name, table in (("training", _training()), ("serving", _serving())):
        begin, end = f"<!-- begin {name}", f"<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        comment, _, rest = rest.partition("\n")
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{NAME} has no lines '{begin} ... -->' and '{end}', between which the table goes")
        text = f"{before}{begin}{comment}\n\n{table}\n\n{end}{after}"
    return text


def _training() -> str:
    return "\n\n".join("\n".join(_training_table(shape)) for shape in BUILT_IN.values())


def _training_table(shape: ModelShape) -> Iterator[str]:
    yield f"### {shape.name}"
    yield ""
    yield f"{shape.parameters / 1e9:.2f} B parameters."
    yield ""
    yield "| GPUs | Trained | Tokens | Set | GPU | Node | Volume | |"
    yield "|---|---|---|---|---|---|---|---|"
    yield from _training_rows(shape)


def _training_rows(shape: ModelShape) -> Iterator[str]:
    for nodes, gpus in _LAYOUTS:
        for adapter in (None, Adapter(_RANK)):
            rank = adapter.rank if adapter is not None else 0
            layout = (shape.name, nodes, gpus, rank)
            known = {row.tokens: row for row in MEASURED if (row.shape, row.nodes, row.gpus, row.rank) == layout}
            for tokens in sorted({*_LENGTHS, *known}):
                asked = Training(shape, nodes, gpus, length=tokens, tokens=tokens, adapter=adapter)
                yield _training_row(asked, known.get(tokens))


def _training_row(asked: Training, measured: Measured | None) -> str:
    # Beside a measured figure stands the one for what was measured, even where less would do.
    found = on_the_same_gpus(replace(asked, sharded=measured.sharded) if measured is not None else asked)
    used = found.training if found is not None else replace(asked, sharded=asked.processes > 1)
    cells = (
        f"{asked.nodes} × {asked.gpus}" if asked.nodes > 1 else str(asked.gpus),
        "all" if asked.adapter is None else "adapter",
        f"{asked.tokens:,}",
        "**no**" if found is None else "fsdp" if used.sharded else "–",
        f"{gpu(used).total / GIB:.0f}",
        f"{host(used).total / GIB:.0f}",
        f"{checkpoints(used).total / GIB:.0f}" if asked.adapter is None else f"{checkpoints(used).total / GIB:.1f}",
        f"measured: {measured.gib:.0f} ({measured.where})" if measured is not None else "computed",
    )
    return f"| {' | '.join(cells)} |"


def _serving() -> str:
    head = "| Model | GPUs | Weights, GiB each | KiB per token, each | Rollouts of 8,192 | Rollouts of 32,768 |"
    return "\n".join((head, "|---|---|---|---|---|---|", *(r for s in BUILT_IN.values() for r in _serving_rows(s))))


def _serving_rows(shape: ModelShape) -> Iterator[str]:
    for gpus in _SERVERS:
        short, long = (Serving(shape, gpus, length=length) for length in _LENGTHS)
        weights = HALF * shape.parameters / gpus / GIB
        each = shape.kv_bytes(gpus) / 1024
        rollouts = [f"{one.rollouts:,}" if one.fits else "**no**" for one in (short, long)]
        yield f"| {shape.name} | {gpus} | {weights:.1f} | {each:.0f} | {' | '.join(rollouts)} |"


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the page. Returns 1 if a check found a difference."""
    parser = argparse.ArgumentParser(prog="python -m gymtrain_trainer.sizing.page", description=f"Generates {NAME}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 and a diff if it differs")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository's root (here by default)")
    options = parser.parse_args(arguments)
    path = options.root / NAME
    found = path.read_text()
    wanted = page(found)
    if not options.check:
        path.write_text(wanted)
        return 0
    names = (f"committed/{NAME}", f"computed/{NAME}")
    changed = list(difflib.unified_diff(found.splitlines(), wanted.splitlines(), *names, lineterm=""))
    if changed:
        print("\n".join(changed))
        print(f"{NAME} is not current: run `python -m gymtrain_trainer.sizing.page`.", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
