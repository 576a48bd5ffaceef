"""What several tests of the trainer start from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trainer.trainer_agent import AgentThread


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 64 tokens."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    vocabulary = {f"t{number}": number for number in range(64)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), eos_token="t1", pad_token="t2"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def served() -> Iterator[AgentThread]:
    """An agent server of this test alone."""
    thread = AgentThread()
    yield thread
    thread.close()
