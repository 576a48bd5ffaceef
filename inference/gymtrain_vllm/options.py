"""What this image's vLLM accepts on its command line, noted when the image is built.

Importing vLLM's parser takes 15 s of a core, and preflight runs before any other pod of a run may start. Run as a
program, this file asks the parser once and writes down its options; `load` reads them in the pod. The notes only ever
let arguments pass, and only those of which `judge` is sure: vLLM itself, which is imported then, judges the rest.

Notes are of one vLLM: they carry a digest of the source files that make its parser, and count for nothing in an image
that was built upon this one with another vLLM.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

_IMAGE_NOTES = Path(__file__).resolve().parent.parent / "vllm-options.json"
_PARSER_SOURCES = ("_version.py", "engine/arg_utils.py", "utils/argparse_utils.py", "entrypoints/**/cli_args.py")


@dataclass(frozen=True)
class Options:
    """The notes.

    Attributes:
        digest: of the vLLM that they are of.
        values: by option: None where it takes no value, the values where it takes some of a few, empty where it takes
            others.
        tool_parsers: names that --tool-call-parser takes.
        architectures: model classes that vLLM has.
    """

    digest: str
    values: Mapping[str, tuple[str, ...] | None]
    tool_parsers: frozenset[str]
    architectures: frozenset[str]


def digest() -> str | None:
    """Tells this image's vLLM from others, without importing it; None where there is none."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    found = hashlib.sha256()
    for pattern in _PARSER_SOURCES:
        for path in sorted(package.glob(pattern)):
            found.update(path.read_bytes())
    return found.hexdigest()


def load(notes: Path = _IMAGE_NOTES) -> Options | None:
    """The image's notes; None where there are none, or where they are of another vLLM."""
    try:
        found = json.loads(notes.read_bytes())
        options = Options(
            digest=str(found["digest"]),
            values={name: None if value is None else tuple(value) for name, value in found["values"].items()},
            tool_parsers=frozenset(found["tool_parsers"]),
            architectures=frozenset(found["architectures"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # vLLM is asked instead
    return options if options.digest == digest() else None


def make() -> Options:
    """Asks vLLM. VLLM_TARGET_DEVICE=cpu has to be set where there is no GPU."""
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ModuleNotFoundError:  # vLLM before 0.32
        from vllm.entrypoints.openai.cli_args import make_arg_parser

    found = digest()
    if found is None:
        raise RuntimeError("vLLM's own files were not found")
    values: dict[str, tuple[str, ...] | None] = {}
    # There is no public way to list a parser's options; argparse has had this list since it is in Python.
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        for name in action.option_strings:
            if action.nargs == 0:
                values[name] = None
            elif action.nargs in (None, "+", "*", "?"):
                values[name] = tuple(str(choice) for choice in action.choices or ())
    return Options(
        digest=found,
        values=values,
        tool_parsers=frozenset(ToolParserManager.list_registered()),
        architectures=frozenset(ModelRegistry.get_supported_archs()),
    )


def write(options: Options, notes: Path) -> None:
    """Writes notes for `load`."""
    document = asdict(options) | {
        "tool_parsers": sorted(options.tool_parsers),
        "architectures": sorted(options.architectures),
    }
    notes.write_text(json.dumps(document, sort_keys=True))


if __name__ == "__main__":
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # where an image is built there is no GPU, and the options are the same
    write(make(), Path(sys.argv[1]))
