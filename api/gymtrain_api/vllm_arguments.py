"""Reads some of vLLM's arguments in `spec.inference.args`, for those that don't have vLLM's parser at hand."""

import re
from collections.abc import Sequence

MAX_MODEL_LEN = "--max-model-len"
AUTO_TOOL_CHOICE = "--enable-auto-tool-choice"
TOOL_CALL_PARSER = "--tool-call-parser"
_TENSOR_PARALLEL = ("--tensor-parallel-size", "-tp")
_PIPELINE_PARALLEL = ("--pipeline-parallel-size", "-pp")

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


def parallel_sizes(arguments: Sequence[str], nodes: int, gpus: int) -> tuple[int, int]:
    """Tensor and pipeline parallel size of a server on `nodes` pods of `gpus` each.

    What `arguments` leave out makes their product the number of GPUs (on the CPU, of pods). Without both, it is tensor
    parallel within a pod, which takes fast links, and pipeline parallel across pods; on the CPU, where vLLM can't do
    that, tensor parallel across them.
    """
    pod = max(1, gpus)
    tensor, pipeline = _count(arguments, _TENSOR_PARALLEL), _count(arguments, _PIPELINE_PARALLEL)
    if nodes == 1:
        return tensor or pod, pipeline or 1
    if tensor is None and pipeline is None:
        return (pod, nodes) if gpus else (nodes, 1)
    places = nodes * pod
    return tensor or max(1, places // (pipeline or 1)), pipeline or max(1, places // (tensor or 1))


def _count(arguments: Sequence[str], options: Sequence[str]) -> int | None:
    """The value that counts of one option with several names; None if it isn't given, or isn't a number."""
    found = [one for option in options if (one := last_of(arguments, option)) is not None]
    value = max(found)[1] if found else None
    return int(value) if value is not None and value.isdecimal() and int(value) else None


def parses_tool_calls(arguments: Sequence[str]) -> bool:
    """Whether vLLM parses tool calls from the model's text."""
    return all(last_of(arguments, option) is not None for option in (AUTO_TOOL_CHOICE, TOOL_CALL_PARSER))
