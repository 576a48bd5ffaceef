"""A random model with tokens for tool calls and reasoning, for the exactness checks where there is no trained one.

    python -m tests.exactness.model OUTPUT_FOLDER

It is images/model-tiny with more special tokens and a longer context. Random weights sample what no trained model
would, so that hardly a turn survives being written as text and tokenized again: the hardest case for exact prefixes.
"""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

_BUILD = Path(__file__).resolve().parents[2] / "images" / "model-tiny" / "build.py"
_MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def main() -> None:
    """Writes model and tokenizer."""
    parser = argparse.ArgumentParser(prog="python -m tests.exactness.model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=Path, help="JSON list of texts that the tokenizer learns from besides its own")
    parser.add_argument("--vocabulary", type=int, default=512, help="tokens of the tokenizer")
    parser.add_argument("--context", type=int, default=8192, help="tokens of a conversation")
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("build", _BUILD)
    assert spec is not None
    assert spec.loader is not None
    build: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    build.SPECIAL = [*build.SPECIAL, *_MARKERS]
    build.VOCABULARY = options.vocabulary
    if options.texts:
        build.TEXT = [*build.TEXT, *json.loads(options.texts.read_text())]
    tokenizer = build.build_tokenizer()
    build.build_model(tokenizer).save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)
    for name, field in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        document = json.loads((options.folder / name).read_text())
        (options.folder / name).write_text(json.dumps({**document, field: options.context}, indent=2))
    ids = {marker: tokenizer.convert_tokens_to_ids(marker) for marker in _MARKERS}
    print(json.dumps(ids))


if __name__ == "__main__":
    main()
