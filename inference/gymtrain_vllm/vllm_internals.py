"""What this part uses of vLLM and vLLM doesn't promise: every such name, and what is done with it.

vLLM's documentation promises flags, variables, configuration files, the server's API, its public Python API
(contributing/deprecation_policy), documented plugins (design/plugin_system, "Compatibility Guarantee") and
weight-transfer engines of others (training/weight_transfer/base). What the package `vllm` exports counts as its public
API here, with `vllm.config` and the two modules that a weight-transfer engine is made with. The rest may change with
each release. Names of it stand in this module alone, each with its row in INTERNALS; tests look for them elsewhere, and
for each row in the vLLM that is installed. docs/upstream.md lists them for users.

Functions import vLLM inside: that takes 15 s of a core, and most callers want to know one thing without it.
"""

import argparse
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Internal:
    """A name that vLLM keeps to itself, or may move at any time.

    Attributes:
        where: a module, `module:name`, or a pattern of files in vLLM's package.
        seen: the release in which it was looked at.
        before: where older releases that we work with have it.
        why: what we use it for.
        instead: the public thing that would take its place.
    """

    where: str
    seen: str
    why: str
    instead: str
    before: str | None = None


SERVER = "vllm.entrypoints.openai.api_server"
MODEL_CLASS_NOTES = "modelinfos/*.json"  # below VLLM_CACHE_ROOT

_CLI = "entrypoints/**/cli_args.py"
_ENGINE = "v1/engine/core.py"
_VERSION = "_version.py"
_PARSER_SOURCES = (_VERSION, "engine/arg_utils.py", "utils/argparse_utils.py", _CLI)
_RELOAD = "vllm.model_executor.model_loader.reload"
_RELOAD_LOGGER = f"{_RELOAD}.layerwise"

_CHECKS_WHY = "preflight tells by argument what vLLM would refuse, before any GPU is taken"
_CHECKS_INSTEAD = "a flag of `vllm serve` that checks its arguments and ends"
_RELOAD_WHY = "a version is loaded when all of it is there; vLLM's own engines begin before, and a transfer may fail"
_RELOAD_INSTEAD = "`reload_weights` of the worker, were an engine to reach it (training/layerwise describes both)"

INTERNALS = (
    Internal(
        SERVER,
        "vLLM 0.32.0",
        "run as the server while our launcher stays `__main__`, which the engine's process imports again",
        "`vllm serve`, once a launcher can call it",
    ),
    Internal(
        _CLI,
        "vLLM 0.32.0",
        "its text tells whether the server has a flag; one that it lacks ends it, and asking the parser takes 15 s",
        "no vLLM before 0.30, which lacks --enable-scale-out",
    ),
    Internal(
        _ENGINE,
        "vLLM 0.32.0",
        "its text tells whether the engine keeps the version of its weights, so that several API servers may ask it",
        "no vLLM before 0.32",
    ),
    Internal(
        "engine/arg_utils.py",
        "vLLM 0.32.0, with utils/argparse_utils.py, _version.py and the files of the row above",
        "a digest of what makes the command line: notes about it count for nothing in an image with another vLLM",
        "the version, were only releases ever built into images",
    ),
    Internal(
        "vllm.utils.argparse_utils:FlexibleArgumentParser",
        "vLLM 0.32.0, with its method `load_config_file`, which not every release has",
        f"{_CHECKS_WHY}; and reserved arguments must not come in by a file",
        _CHECKS_INSTEAD,
    ),
    Internal(
        "vllm.entrypoints.launchers.cli_args:make_arg_parser",
        "vLLM 0.32.0",
        f"{_CHECKS_WHY}; and its options are noted when the image is built",
        _CHECKS_INSTEAD,
        before="vllm.entrypoints.openai.cli_args:make_arg_parser",
    ),
    Internal(
        "vllm.entrypoints.launchers.cli_args:validate_parsed_serve_args",
        "vLLM 0.32.0",
        _CHECKS_WHY,
        _CHECKS_INSTEAD,
        before="vllm.entrypoints.openai.cli_args:validate_parsed_serve_args",
    ),
    Internal(
        "vllm.entrypoints.cli.serve:ServeSubcommand",
        "vLLM 0.32.0",
        "its `cmd` runs the workers of another pod's server, and a server with several API servers: the module of the "
        "first row can't (--headless, --api-server-count), and vLLM's command line wants its metadata under the name "
        "vllm, which CPU builds don't have",
        "`vllm serve`, once a launcher can call it",
    ),
    Internal(
        "vllm.entrypoints.launchers.launcher:validate_api_server_args",
        "vLLM 0.32.0",
        _CHECKS_WHY,
        _CHECKS_INSTEAD,
        before="vllm.entrypoints.openai.api_server:validate_api_server_args",
    ),
    Internal(
        "vllm.tool_parsers:ToolParserManager",
        "vLLM 0.32.0",
        f"{_CHECKS_WHY}; and its names are noted when the image is built",
        "choices of --tool-call-parser in its help",
    ),
    Internal("vllm.reasoning:ReasoningParserManager", "vLLM 0.32.0", _CHECKS_WHY, _CHECKS_INSTEAD),
    Internal(
        "vllm.usage.usage_lib:UsageContext",
        "vLLM 0.32.0",
        f"{_CHECKS_WHY}: create_engine_config is the whole check, with defaults that depend on who asks",
        _CHECKS_INSTEAD,
    ),
    Internal(
        "vllm.model_executor.layers.quantization:QUANTIZATION_METHODS",
        "vLLM 0.32.0",
        "create_model_config is asked without what the device decides; the name of a quantization is checked beside it",
        _CHECKS_INSTEAD,
    ),
    Internal(
        "vllm.model_executor.models.registry:_run_in_subprocess",
        "vLLM 0.32.0, with ModelRegistry.models; what is found is kept as modelinfos/*.json below VLLM_CACHE_ROOT",
        "replaced while the image is built: vLLM looks at each model class in a process that imports vLLM, lest it "
        "initialize CUDA in its own; there is none, and one process for all takes a minute less",
        "a command that fills vLLM's cache",
    ),
    Internal(
        "vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory.register_engine",
        "vLLM 0.32.0; the function is public, the words of its error are not",
        "vLLM calls a plugin several times in some processes, and the factory refuses a name that it has",
        'a question "is it there?", as ModelRegistry has',
    ),
    Internal(f"{_RELOAD}:initialize_layerwise_reload", "vLLM 0.32.0", _RELOAD_WHY, _RELOAD_INSTEAD),
    Internal(
        f"{_RELOAD}:finalize_layerwise_reload",
        "vLLM 0.32.0",
        f"{_RELOAD_WHY}; the logger of reload.layerwise is quiet meanwhile, which calls layers without weights failed",
        _RELOAD_INSTEAD,
    ),
    Internal(
        "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding",
        "vLLM 0.32.0, with `cpu_linear` and `quant_method` of the layer",
        "on CPUs vLLM multiplies with a packed copy of each matrix, made after loading. A head that is tied to the "
        "embedding owns no parameter, so a reload skips it, and its copy would stay the old one without any error",
        "a reload that packs tied layers, too",
    ),
    Internal(
        "vllm.model_executor.layers.fused_moe.fused_moe_method_base:FusedMoEMethodBase",
        "vLLM 0.32.0, with `moe_kernel.fused_experts.process_weights_after_loading`",
        "on CPUs vLLM packs experts when it loads them first, and not when it loads them again: it would compute with "
        "weights in another order",
        "a reload that packs experts, too",
    ),
)


# --- Read from vLLM's files, without importing it ---


def _package() -> Path | None:
    spec = find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def server_knows(setting: str) -> bool:
    """Whether this vLLM's server has a setting, told by the text of its `cli_args.py`."""
    package = _package()
    if package is None:
        return False
    return any(setting in path.read_text(errors="replace") for path in package.glob(_CLI))


def engine_knows_its_weights() -> bool:
    """Whether this vLLM's engine keeps the version of its weights, told by its text. Before, its API server did."""
    package = _package()
    try:
        return package is not None and "def get_weight_version" in (package / _ENGINE).read_text(errors="replace")
    except OSError:
        return False


def release() -> str | None:
    """This image's release of vLLM, told by the text of its `_version.py`; None if there is none."""
    package = _package()
    try:
        text = (package / _VERSION).read_text() if package else ""
    except OSError:
        return None
    found = re.search(r"^__version__ = .*?[\"']([^\"']+)[\"']", text, re.MULTILINE)
    return found[1] if found else None


def parser_digest() -> str | None:
    """Tells the command line of this image's vLLM from others', by the files that make it; None if there is none."""
    package = _package()
    if package is None:
        return None
    found = hashlib.sha256()
    for pattern in _PARSER_SOURCES:
        for path in sorted(package.glob(pattern)):
            found.update(path.read_bytes())
    return found.hexdigest()


# --- The command line: vLLM's parser and its checks, without starting a server ---


def serve_parser(refuse: Callable[[str], NoReturn]) -> argparse.ArgumentParser:
    """The server's own parser, which calls `refuse` with its message where it would end the process."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ModuleNotFoundError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]  # vllm is not installed where types are checked
        def error(self, message: str) -> NoReturn:
            refuse(message)

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            refuse(message or "the server would print its help and end")

        def print_help(self, file: Any = None) -> None:
            """Does nothing, because nobody reads the help."""

    parser: argparse.ArgumentParser = make_arg_parser(Parser())
    return parser


def parser_options(parser: argparse.ArgumentParser) -> Mapping[str, argparse.Action]:
    """The options of a parser by name."""
    return {name: action for action in parser._actions for name in action.option_strings}


def read_config_file(parser: argparse.ArgumentParser, name: str) -> list[str]:
    """The arguments in a file of --config; empty if the release can't say."""
    load = getattr(parser, "load_config_file", None)
    return [] if load is None else list(load(name))


def check_serve_arguments(args: argparse.Namespace) -> None:
    """vLLM's own checks of a parsed command line, in the order of its `main` and `setup_server`.

    Raises:
        Exception: vLLM refuses it, with nearly any class.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    try:
        from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
        from vllm.entrypoints.launchers.launcher import validate_api_server_args
    except ModuleNotFoundError:
        from vllm.entrypoints.openai.api_server import validate_api_server_args
        from vllm.entrypoints.openai.cli_args import validate_parsed_serve_args

    validate_parsed_serve_args(args)
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if getattr(args, "reasoning_parser_plugin", None):
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    validate_api_server_args(args)


def run_workers(arguments: list[str]) -> None:
    """Runs the workers of this pod for a server in another one (--headless), until one of them ends."""
    args = _parsed(arguments)
    args.api_server_count = None  # these have none, whatever a release takes for a default
    _serve(args)


def run_api_servers(arguments: list[str]) -> None:
    """Runs a server with as many API server processes as its arguments say, until one of them or the engine ends."""
    args = _parsed(arguments)
    if args.api_server_count is None or args.api_server_count < 1:  # vLLM would start workers without a server
        raise SystemExit(f"gymtrain: --api-server-count is {args.api_server_count}: it must be at least 1")
    _serve(args)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    def refuse(message: str) -> NoReturn:
        raise SystemExit(f"gymtrain: vLLM refuses its arguments: {message}")

    return serve_parser(refuse).parse_args(arguments)


def _serve(args: argparse.Namespace) -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand

    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as vLLM's own command line has it
    ServeSubcommand.cmd(args)


def tool_parsers() -> frozenset[str]:
    """Names that --tool-call-parser takes."""
    from vllm.tool_parsers import ToolParserManager

    return frozenset(ToolParserManager.list_registered())


# --- What vLLM makes of a model, without weights and without GPUs ---


def check_engine(engine: Any) -> None:
    """vLLM's whole check of an engine's arguments (`AsyncEngineArgs`), the model's config included.

    Raises:
        Exception: vLLM refuses it, with nearly any class.
    """
    from vllm.usage.usage_lib import UsageContext

    engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def check_model_for_gpus(engine: Any) -> None:
    """What `check_engine` judges without the device: the model's config, and how it divides among workers.

    Raises:
        Exception: vLLM refuses it, with nearly any class.
    """
    from vllm.config import ParallelConfig
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    if engine.quantization is not None and engine.quantization not in QUANTIZATION_METHODS:
        raise ValueError(
            f"unknown quantization {engine.quantization}: one of {', '.join(sorted(QUANTIZATION_METHODS))}"
        )
    config = json.loads((Path(engine.model) / "config.json").read_bytes())
    if config.get("quantization_config") or config.get("compression_config"):
        return  # which quantized models it takes depends on the device
    engine.quantization = None
    engine.quantization_config = None
    engine.dtype = "float32"
    engine.enable_sleep_mode = engine.enable_cumem_allocator = False
    parallel = ParallelConfig(
        tensor_parallel_size=engine.tensor_parallel_size,
        pipeline_parallel_size=engine.pipeline_parallel_size,
        distributed_executor_backend="mp",  # named, so that no GPUs are counted
    )
    engine.create_model_config().verify_with_parallel_config(parallel)


def inspect_model_class(architecture: str) -> bool:
    """Lets vLLM look at one of its model classes and keep what it saw; False if it has no such class."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda look: look()
    model = registry.ModelRegistry.models.get(architecture)
    if model is None:
        return False
    model.inspect_model_cls()
    return True


# --- In the engine's process: new weights for a model that serves ---


def is_registered_twice(error: ValueError) -> bool:
    """Whether an engine's registration failed because it is registered already."""
    return "already registered" in str(error)


@contextmanager
def layerwise_reload(model: Any, model_config: Any) -> Iterator[None]:
    """Weights that `model.load_weights` loads in the block replace the model's, layer by layer."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    noisy = logging.getLogger(_RELOAD_LOGGER)
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        initialize_layerwise_reload(model)
        yield
        finalize_layerwise_reload(model, model_config)
    finally:
        noisy.setLevel(level)


def pack_for_cpu(model: Any) -> None:
    """After a layerwise reload: packs again what a CPU computes with packed, and what the reload left as it came."""
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if isinstance(layer, VocabParallelEmbedding) and hasattr(layer, "cpu_linear"):
            method.process_weights_after_loading(layer)
        if isinstance(method, FusedMoEMethodBase) and hasattr(method.moe_kernel, "fused_experts"):
            method.moe_kernel.fused_experts.process_weights_after_loading(layer)
