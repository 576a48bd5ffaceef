"""A random model with tokens for tool calls and reasoning, for the exactness check where there is no trained one.

    python -m tests.exactness.model OUTPUT_FOLDER

It is images/model-tiny with more special tokens and a longer context. Random weights sample what no trained model
would,
so that hardly a turn survives being written as text and tokenized again: the hardest case for exact prefixes.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

_BUILD = Path(__file__).resolve().parents[2] / "images" / "model-tiny" / "build.py"
_MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
_CONTEXT = 8192


def main() -> None:
    """Writes model and tokenizer."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = Path(sys.argv[1])
    spec = importlib.util.spec_from_file_location("build", _BUILD)
    assert spec is not None
    assert spec.loader is not None
    build: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    build.SPECIAL = [*build.SPECIAL, *_MARKERS]
    tokenizer = build.build_tokenizer()
    build.build_model(tokenizer).save_pretrained(target)
    tokenizer.save_pretrained(target)
    for name, field in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        document = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps({**document, field: _CONTEXT}, indent=2))
    ids = {marker: tokenizer.convert_tokens_to_ids(marker) for marker in _MARKERS}
    print(json.dumps(ids))


if __name__ == "__main__":
    main()
