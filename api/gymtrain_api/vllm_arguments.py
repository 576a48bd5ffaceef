"""Reads some of vLLM's arguments in `spec.inference.args`, for preflight in the Gym image and in the trainer image."""

import re
from collections.abc import Sequence

MAX_MODEL_LEN = "--max-model-len"
AUTO_TOOL_CHOICE = "--enable-auto-tool-choice"
TOOL_CALL_PARSER = "--tool-call-parser"

_NUMBER = re.compile(r"^(\d+(?:\.\d+)?)([kKmMgGtT]?)$")
# As in vLLM's human_readable_int (vLLM 0.32, utils/argparse_utils.py): lower case is decimal, upper case is binary.
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def last_of(arguments: Sequence[str], option: str) -> tuple[int, str | None] | None:
    """Position and value of the last `option`, which is the one that counts, or None if it isn't given.

    The value is None if nothing follows the option. `--a-b`, `--a_b`, `--a-b=c` and `--a-b c` are all vLLM's spellings.
    """
    found = None
    for position, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name.replace("_", "-") == option:
            following = arguments[position + 1] if position + 1 < len(arguments) else None
            found = (position, value if is_joined else following)
    return found


def max_model_len(arguments: Sequence[str]) -> tuple[int, int] | None:
    """Position and value (tokens) of `--max-model-len`, or None if it isn't given or isn't a plain number (auto)."""
    found = last_of(arguments, MAX_MODEL_LEN)
    if found is None or found[1] is None:
        return None
    number = _NUMBER.match(found[1])
    if number is None or ("." in number[1] and number[2] not in "kmgt"):
        return None
    return found[0], int(float(number[1]) * _FACTORS[number[2]])


def parses_tool_calls(arguments: Sequence[str]) -> bool:
    """Whether vLLM parses tool calls from the model's text."""
    return all(last_of(arguments, option) is not None for option in (AUTO_TOOL_CHOICE, TOOL_CALL_PARSER))
