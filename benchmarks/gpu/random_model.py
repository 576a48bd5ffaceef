"""A model of Qwen3-8B's shape, or another one, with random weights and a real tokenizer, in FOLDER/model.

    python -m benchmarks.gpu.random_model FOLDER --tokenizer SMOLLM2 [--shape Qwen3-4B]

Needs torch, transformers and, to be quick, a GPU.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.shapes import BY_NAME

# Of runs with such a model, which learns nothing: what the trainer's config gets, so that all weights change at each
# step; spec.model.lora, as an adapter that begins as zeros would stay so and be right anywhere; and
# spec.weightSync.parityThreshold.
CHANGING = {"weight_decay": 100.0}
RANDOM_ADAPTER = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "init_lora_weights": False}
RANDOM_PARITY = "0.5"  # rounding alone makes 0.1 to 0.3, other weights 6 and more


def make(folder: Path, tokenizer: Path, kind: str, shape: Mapping[str, Any]) -> None:
    """Writes one of the kind, such as "qwen3". What the tokenizer doesn't know is sampled by chance only."""
    import torch
    from transformers import AutoTokenizer

    from dev.gpu.small_model import make_model

    known = AutoTokenizer.from_pretrained(tokenizer)
    model = make_model(folder, shape, kind, weights=False)
    with torch.no_grad():
        model.lm_head.weight[len(known) :].zero_()
    model.save_pretrained(folder)
    known.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # pods aren't root's


def main() -> int:
    """Makes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of SmolLM2's")
    parser.add_argument("--shape", choices=BY_NAME, default="Qwen3-8B", help="the shape (%(default)s)")
    options = parser.parse_args()
    make(options.folder / "model", options.tokenizer, *BY_NAME[options.shape])
    return 0


if __name__ == "__main__":
    sys.exit(main())
