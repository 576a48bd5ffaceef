"""What several tests of the trainer start from."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.trainer_agent import AgentThread


@pytest.fixture(autouse=True)
def variables_end_with_the_test() -> Iterator[None]:
    """A trainer that is made in this process sets variables for its trackers, which other tests' processes inherit."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def tiny_model(tiny_models: Callable[..., Path]) -> Path:
    """Two layers, 64 tokens, float32, embedding and output head tied."""
    return tiny_models()


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes one in a folder of its own, of a type, and of another kind or with other settings than `tiny_model` has."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    def make(dtype: str = "float32", kind: str = "Qwen3", **settings: Any) -> Path:
        folder = tmp_path_factory.mktemp("model")
        vocabulary = {f"t{number}": number for number in range(64)}
        PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), eos_token="t1", pad_token="t2"
        ).save_pretrained(folder)
        torch.manual_seed(0)
        config = {
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "tie_word_embeddings": True,
            "eos_token_id": 1,
            "pad_token_id": 2,
        }
        made = getattr(transformers, f"{kind}Config")(**config | settings)
        getattr(transformers, f"{kind}ForCausalLM")(made).to(getattr(torch, dtype)).save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def without_weights(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a model's folder, but for its weights."""

    def copy(model: Path) -> Path:
        return Path(shutil.copytree(model, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors")))

    return copy


@pytest.fixture
def served() -> Iterator[AgentThread]:
    """An agent server of this test alone."""
    thread = AgentThread()
    yield thread
    thread.close()
