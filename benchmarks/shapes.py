"""Shapes of the models that are measured with random weights, as arguments of transformers' configurations."""

from typing import Any

SMOLLM2_135M: dict[str, Any] = {  # LlamaConfig
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
