"""Is vLLM sure to accept a command line? Told from the image's notes in milliseconds.

A yes has to be certain; everything else is a no, which means: ask vLLM. So what is judged here are the arguments that
runs usually have, with values of which no vLLM complains, and models without anything unusual.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_vllm.options import Options

_MOST_SEQUENCES = 256  # no more than vLLM puts into a batch by itself
_BLOCK_SIZES = ("16", "32", "64")  # that every attention kernel takes
_SHARE = re.compile(r"0?\.\d*[1-9]\d*|1(\.0+)?")

# Keys of a model's config.json that change what vLLM makes of it.
_UNUSUAL = ("quantization_config", "compression_config", "auto_map", "dual_chunk_attention_config")


@dataclass
class _Line:
    """What a rule is given beside the value."""

    spec: GymTrainingRunSpec
    options: Options
    model: Mapping[str, Any] | None
    seen: dict[str, str] = field(default_factory=dict)


def surely_accepted(
    spec: GymTrainingRunSpec, line: Sequence[str], options: Options, model: Mapping[str, Any] | None
) -> bool:
    """Whether vLLM is sure to accept the run.

    Args:
        spec: of the run.
        line: `arguments.build`'s, which ends with the user's.
        options: of the vLLM that will serve.
        model: its config.json; None where the folder is still to be filled: nobody can judge it then.
    """
    own = line[: len(line) - len(spec.inference.args)]
    if not all(_is_known(argument, options) for argument in own):
        return False
    given = _Line(spec, options, model)
    if not _all_sure(list(spec.inference.args), given):
        return False
    if "--enable-auto-tool-choice" in given.seen and "--tool-call-parser" not in given.seen:
        return False
    if spec.inference.gpus == 0 and spec.model.dtype == "float16":
        return False
    return model is None or _is_usual(model, given)


def _is_known(argument: str, options: Options) -> bool:
    """One of our own arguments, which are right where this vLLM has them."""
    name, equals, value = argument.partition("=")
    if name not in options.values:
        return False
    choices = options.values[name]
    if choices is None:
        return not equals
    return bool(equals) and (not choices or value in choices)


def _all_sure(arguments: list[str], given: _Line) -> bool:
    while arguments:
        name, equals, value = arguments.pop(0).partition("=")
        name = name.replace("_", "-")
        if name not in given.options.values or name in given.seen:
            return False
        if name in _FLAGS and given.options.values[name] is None:
            if equals:
                return False
        elif (rule := _RULES.get(name)) is not None and given.options.values[name] is not None:
            if not equals:
                value = arguments.pop(0) if arguments else ""
            if not rule(value, given):
                return False
        else:
            return False
        given.seen[name] = value
    return True


def _length(value: str, given: _Line) -> bool:
    if not _is_count(value) or given.model is None:
        return _is_count(value)
    limit = given.model.get("max_position_embeddings")
    scaled = given.model.get("rope_scaling") or "factor" in (given.model.get("rope_parameters") or {})
    return isinstance(limit, int) and not scaled and int(value) <= limit


def _workers(value: str, given: _Line) -> bool:
    return _is_count(value) and int(value) <= max(1, given.spec.inference.gpus)


def _is_count(value: str) -> bool:
    return re.fullmatch(r"[1-9][0-9]{0,8}", value) is not None


_FLAGS = frozenset(
    {"--enable-auto-tool-choice", "--enforce-eager", "--enable-prefix-caching", "--no-enable-prefix-caching"}
)
_RULES: Mapping[str, Callable[[str, _Line], bool]] = {
    "--max-model-len": _length,
    "--max-num-seqs": lambda value, _: _is_count(value) and int(value) <= _MOST_SEQUENCES,
    "--gpu-memory-utilization": lambda value, _: _SHARE.fullmatch(value) is not None,
    "--block-size": lambda value, _: value in _BLOCK_SIZES,
    "--tensor-parallel-size": _workers,
    "--tool-call-parser": lambda value, given: value in given.options.tool_parsers,
}


def _is_usual(model: Mapping[str, Any], given: _Line) -> bool:
    """Whether the model is one of vLLM's own language models, and its heads divide among the workers."""
    classes = model.get("architectures")
    if not (isinstance(classes, list) and len(classes) == 1 and str(classes[0]).endswith("ForCausalLM")):
        return False
    if classes[0] not in given.options.architectures or any(model.get(key) for key in _UNUSUAL):
        return False
    workers = int(given.seen.get("--tensor-parallel-size", max(1, given.spec.inference.gpus)))
    heads = model.get("num_attention_heads")
    return workers == 1 or (isinstance(heads, int) and heads % workers == 0)
