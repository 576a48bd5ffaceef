"""What vLLM finds out about model classes, made once when the image is built.

vLLM looks at a model class in a process of its own before it starts, which costs 15 to 20 s of imports, and keeps what
it saw in its cache folder. In a pod that folder starts empty. Run as a program, this file fills the folder in the
image for common classes; `provide` copies it. vLLM checks each note against the class's source text, and looks at a
class without a note as usual.
"""

import os
import shutil
import sys
from pathlib import Path

from gymtrain_vllm import vllm_internals

_ARCHITECTURES = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
_IMAGE_CACHE = Path(__file__).resolve().parent.parent / "vllm-cache"


def provide(cache: Path, source: Path = _IMAGE_CACHE) -> None:
    """Copies the image's notes to vLLM's cache folder, over none that is there."""
    for note in source.glob(vllm_internals.MODEL_CLASS_NOTES):
        target = cache / note.relative_to(source)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(note, target)


def make() -> None:
    """Looks at the classes; VLLM_CACHE_ROOT says where to. A class that this vLLM lacks is left out."""
    for architecture in _ARCHITECTURES:
        if not vllm_internals.inspect_model_class(architecture):
            print(f"{architecture}: not in this vLLM", file=sys.stderr)


if __name__ == "__main__":
    print(f"notes in {os.environ['VLLM_CACHE_ROOT']}")
    make()
