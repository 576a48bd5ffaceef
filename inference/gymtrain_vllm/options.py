"""What this image's vLLM accepts on its command line, noted when the image is built.

Importing vLLM's parser takes 15 s of a core, and preflight runs before any other pod of a run may start. Run as a
program, this file asks the parser once and writes down its options; `load` reads them in the pod. The notes only ever
let arguments pass, and only those of which `acceptance` is sure: vLLM itself, which is imported then, judges the rest.

Notes are of one vLLM: they carry a digest of the source files that make its parser, and count for nothing in an image
that was built upon this one with another vLLM.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from gymtrain_vllm import vllm_internals

_IMAGE_NOTES = Path(__file__).resolve().parent.parent / "vllm-options.json"


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


def load(notes: Path = _IMAGE_NOTES) -> Options | None:
    """The image's notes; None if there are none, or where they are of another vLLM."""
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
    return options if options.digest == vllm_internals.parser_digest() else None


def make() -> Options:
    """Asks vLLM. VLLM_TARGET_DEVICE=cpu has to be set where there is no GPU."""
    from vllm import ModelRegistry

    found = vllm_internals.parser_digest()
    if found is None:
        raise RuntimeError("vLLM's own files were not found")
    values: dict[str, tuple[str, ...] | None] = {}
    for name, option in vllm_internals.parser_options(vllm_internals.serve_parser(_refuse)).items():
        if option.nargs == 0:
            values[name] = None
        elif option.nargs in (None, "+", "*", "?"):
            values[name] = tuple(str(choice) for choice in option.choices or ())
    return Options(
        digest=found,
        values=values,
        tool_parsers=vllm_internals.tool_parsers(),
        architectures=frozenset(ModelRegistry.get_supported_archs()),
    )


def _refuse(message: str) -> NoReturn:
    raise RuntimeError(f"vLLM's parser gives up: {message}")


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
