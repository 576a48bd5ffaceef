"""A Qwen3 of 0.1 M random parameters with a tokenizer of its own, for tests that need a model and no skill.

    python build.py OUTPUT_FOLDER [--experts]

With --experts it is a Qwen3-MoE of 3.7 M: widths and counts of Qwen3-30B-A3B divided by ten, as far as they go.

Everything is made on the spot and from fixed seeds: the same versions of the libraries give the same bytes.
The dense one's embedding is tied to the output head on purpose: that is the case in which weight sync can go wrong
silently.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 512
POSITIONS = 32768  # a coding agent's instructions alone are 6,000 of these short tokens
PADDING, START, END = SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# What the tokenizer learns its merges from: enough to shorten prompts about sums, no more.
TEXT = [
    "State the final answer to the following arithmetic problem: 4 + 8 =",
    "system user assistant You are a helpful assistant. The answer is",
    "Question: What is 3 + 5? Answer: 8",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
] * 8


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text has tokens, every token has text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PADDING,
        additional_special_tokens=[START],
        model_max_length=POSITIONS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Two layers of width 64."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # vLLM's CPU attention takes multiples of 32
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return _made(Qwen3ForCausalLM, config)


def build_mixture(tokenizer: PreTrainedTokenizerFast) -> Qwen3MoeForCausalLM:
    """Five layers of width 192, with 12 experts each, of which a token sees two."""
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        moe_intermediate_size=96,
        num_hidden_layers=5,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=12,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return _made(Qwen3MoeForCausalLM, config)


def _made(kind: type[Any], config: Any) -> Any:
    torch.manual_seed(0)
    model = kind(config)
    # The settings that Qwen's own models bring: a run samples with its own, so these must not count.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        repetition_penalty=1.05,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    return model


def main() -> None:
    """Writes model, tokenizer and configs."""
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--experts"]):
        sys.exit(__doc__)
    target = Path(sys.argv[1])
    tokenizer = build_tokenizer()
    (build_mixture if sys.argv[2:] else build_model)(tokenizer).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
