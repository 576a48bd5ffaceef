"""Reading vLLM's arguments as vLLM does."""

import pytest

from gymtrain_api.vllm_arguments import max_model_len, parses_tool_calls


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--max-model-len=2048"], (0, 2048)),
        (["--seed=1", "--max_model_len", "2048"], (1, 2048)),
        (["--max-model-len=16k"], (0, 16_000)),
        (["--max-model-len=16K"], (0, 16_384)),
        (["--max-model-len=25.6k"], (0, 25_600)),
        (["--max-model-len=1", "--max-model-len=512"], (1, 512)),
        (["--max-model-len=512", "--max-model-len=auto"], None),
        (["--max-model-len=-1"], None),
        (["--max-model-len=1.5K"], None),
        (["--max-model-len"], None),
        ([], None),
    ],
)
def test_the_context_length_that_counts(arguments: list[str], found: tuple[int, int] | None) -> None:
    assert max_model_len(arguments) == found


@pytest.mark.parametrize(
    ("arguments", "parses"),
    [
        (["--enable-auto-tool-choice", "--tool-call-parser=hermes"], True),
        (["--tool_call_parser", "hermes", "--enable_auto_tool_choice"], True),
        (["--enable-auto-tool-choice"], False),
        (["--tool-call-parser=hermes"], False),
        ([], False),
    ],
)
def test_tool_calls_need_both_settings(arguments: list[str], parses: bool) -> None:
    assert parses_tool_calls(arguments) is parses
