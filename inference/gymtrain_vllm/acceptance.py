"""Whether vLLM accepts a command line: checked with the image's notes in milliseconds, otherwise with vLLM itself.

**By the notes** (`surely_accepted`). A yes has to be certain; everything else is a no, which means: ask vLLM. So what
passes are the arguments that runs usually have, with values of which no vLLM complains, and models without anything
unusual.

**By vLLM** (`refusals`), on a CPU: its parser, its checks and its configs. The steps are those of vLLM's server up to
the point where it would start its engine. Where the run's pods have GPUs and this one has none, vLLM is told
VLLM_TARGET_DEVICE=cpu, and what it makes of the model is asked without the settings that it judges by the device: a
refusal that a GPU would not give must not end a run.
"""

import argparse
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic import ValidationError

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_vllm import vllm_internals
from gymtrain_vllm.arguments import api_servers, one_api_server, reserved
from gymtrain_vllm.options import Options

_MOST_SEQUENCES = 256  # no more than vLLM puts into a batch by itself
_BLOCK_SIZES = ("16", "32", "64")  # that every attention kernel takes
_SHARE = re.compile(r"0?\.\d*[1-9]\d*|1(\.0+)?")

# Keys of a model's config.json that change what vLLM makes of it.
_UNUSUAL = ("quantization_config", "compression_config", "auto_map", "dual_chunk_attention_config")

_ARGS = "spec.inference.args"
_LONGEST = 800  # characters of one message
_CONFIG = "--config"


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
        model: its config.json; None if the folder is still to be filled: nobody can judge it then.
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


class _RefusedError(Exception):
    """The parser's message. Anything else would end the process."""


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def refusals(spec: GymTrainingRunSpec, line: Sequence[str], *, has_model: bool) -> list[Finding]:
    """What vLLM refuses.

    Args:
        spec: of the run.
        line: `arguments.build`'s.
        has_model: whether the model's folder is filled; what vLLM makes of the model can't be asked before.
    """
    from vllm import AsyncEngineArgs

    given = spec.inference.args
    parser = vllm_internals.serve_parser(_refuse)
    try:
        if found := list(_of_file(spec, parser)):
            return found
        args = parser.parse_args(list(line))
        vllm_internals.check_serve_arguments(args)
        if api_servers(given) and (args.api_server_count or 0) < 1:
            return [_finding(f"--api-server-count is {args.api_server_count}: it must be at least 1", given)]
        engine = AsyncEngineArgs.from_cli_args(args)
    except _RefusedError as error:
        names = [name for name in vllm_internals.parser_options(parser) if name.startswith("--")]
        return list(_of_parser(str(error), given, names))
    except Exception as error:  # vLLM raises nearly any
        return [_finding(error, given)]
    return _of_model(spec, engine) if has_model else _of_workers(spec, engine)


def _of_file(spec: GymTrainingRunSpec, parser: argparse.ArgumentParser) -> Iterator[Finding]:
    """Why the file of --config can't be read, or the arguments in it that don't belong there: vLLM reads them as if
    they stood on the command line, and our launcher doesn't."""
    given = spec.inference.args
    if _CONFIG not in given[:-1]:
        return
    position = list(given).index(_CONFIG)
    name, where = given[position + 1], f"{_ARGS}[{position}]"
    try:
        arguments = vllm_internals.read_config_file(parser, name)
    except Exception as error:  # YAML's own, and the file system's
        yield Finding(where=where, message=f"vLLM can't read {name}: {_line(error)}")
        return
    for _, message in reserved(arguments, spec):
        yield Finding(where=where, message=f"{name}: {message}")
    if api_servers(arguments) and not api_servers(given) and one_api_server(spec) is None:
        yield Finding(where=where, message=f"{name}: the number of API servers belongs into {_ARGS} itself")


def _of_parser(message: str, given: Sequence[str], names: Sequence[str]) -> Iterator[Finding]:
    """Findings of the parser's own message."""
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown != message:
        words = set(unknown.split())
        found = [(n, a) for n, a in enumerate(given) if a.startswith("-") and words & set(_dashed(a).split())]
        for number, argument in found:
            name = _dashed(argument).partition("=")[0]
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "remove it, or name an image whose vLLM has it"
            yield Finding(
                where=f"{_ARGS}[{number}]", message=f"vLLM in this run's image has no argument {name}; {hint}"
            )
        if found:
            return
    yield _finding(message, given)


def _of_workers(spec: GymTrainingRunSpec, engine: Any) -> list[Finding]:
    """More workers than the pod has GPUs, which vLLM can't tell where there is no GPU."""
    gpus = spec.inference.gpus
    workers = engine.tensor_parallel_size * engine.pipeline_parallel_size
    if not gpus or workers <= gpus or engine.distributed_executor_backend not in (None, "mp"):
        return []
    if getattr(engine, "nnodes", 1) > 1:
        return []
    where = next(_mentioned("tensor parallel size pipeline parallel size", spec.inference.args), "spec.inference.gpus")
    message = f"tensor and pipeline parallelism need {workers} GPUs, and a pod has {gpus} (spec.inference.gpus)"
    return [Finding(where=where, message=f"{message}: set it to {workers}, or lower the parallelism")]


def _of_model(spec: GymTrainingRunSpec, engine: Any) -> list[Finding]:
    """What vLLM makes of the model with these settings. No weights are read."""
    if found := _of_workers(spec, engine):
        return found
    try:
        if spec.inference.gpus == 0:
            # The pods have no GPU either: it is their own check, whole.
            vllm_internals.check_engine(engine)
        else:
            vllm_internals.check_model_for_gpus(engine)
    except Exception as error:  # vLLM raises nearly any
        return [_finding(error, spec.inference.args)]
    return []


def _finding(error: Exception | str, given: Sequence[str]) -> Finding:
    text = _line(error)
    where = next(_mentioned(text, given), None)
    if where is None:
        ours = "tensor parallel size" in text  # which follows from the GPUs of a pod
        where = "spec.inference.gpus" if ours else _ARGS if given else "spec.inference"
    return Finding(where=where, message=f"vLLM refuses it: {text}")


def _line(error: Exception | str) -> str:
    return " ".join(_text(error).split())[:_LONGEST]


def _text(error: Exception | str) -> str:
    if isinstance(error, ValidationError):
        parts = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        return "; ".join(part.removeprefix(": ") for part in parts)
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])  # str() of a KeyError puts it into quotes
    return str(error) or type(error).__name__


def _mentioned(text: str, given: Sequence[str]) -> Iterator[str]:
    """Fields of the arguments that a text speaks of. Its words may be joined by spaces, dashes or underscores."""
    plain = re.sub(r"[-_ ]+", " ", text.lower())
    for number, argument in enumerate(given):
        name = re.sub(r"[-_. ]+", " ", argument.partition("=")[0].lower()).strip()
        if argument.startswith("-") and re.search(rf"\b{re.escape(name)}\b", plain):
            yield f"{_ARGS}[{number}]"


def _dashed(argument: str) -> str:
    """The spelling that the parser's messages have."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
