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
LLAMA_06B: dict[str, Any] = {  # LlamaConfig of Qwen3-0.6B's sizes; its heads can be shared by two GPUs
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}

_QWEN3: dict[str, Any] = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}
QWEN3_06B: dict[str, Any] = {  # Qwen3Config
    **_QWEN3,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
}
QWEN3_17B: dict[str, Any] = {  # Qwen3Config
    **_QWEN3,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
}
QWEN3_4B: dict[str, Any] = {  # Qwen3Config
    **_QWEN3,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "tie_word_embeddings": True,
}
QWEN3_8B: dict[str, Any] = {  # Qwen3Config
    **_QWEN3,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}
QWEN3_14B: dict[str, Any] = {  # Qwen3Config
    **_QWEN3,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "tie_word_embeddings": False,
}
QWEN3_30B_A3B: dict[str, Any] = {  # Qwen3MoeConfig
    **_QWEN3,
    "hidden_size": 2048,
    "intermediate_size": 6144,  # of a dense layer, which it has none of
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
QWEN3_3B_EXPERTS: dict[str, Any] = {  # Qwen3MoeConfig: a tenth of Qwen3-30B-A3B
    **QWEN3_30B_A3B,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 384,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_experts": 64,
}
BY_NAME: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-4B": ("qwen3", QWEN3_4B),
    "Qwen3-8B": ("qwen3", QWEN3_8B),
    "Qwen3-3B-experts": ("qwen3_moe", QWEN3_3B_EXPERTS),
}
"""Kind and configuration of what a whole run is measured with."""
