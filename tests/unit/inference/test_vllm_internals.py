"""What vLLM doesn't promise stands in one module, with a row for each name."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from gymtrain_vllm.vllm_internals import INTERNALS, Internal
from tests.support.upstream_privates import Part, internals, load, strays

ROOT = Path(__file__).parents[3]
PART = Part(
    ROOT / "inference" / "gymtrain_vllm",
    "vllm_internals.py",
    {
        # What `vllm` exports, its configuration, and what its documentation builds weight-transfer engines with.
        "vllm": (
            "vllm",
            "vllm.config",
            "vllm.distributed.weight_transfer.base",
            "vllm.distributed.weight_transfer.factory",
        ),
        "torch": None,
        "safetensors": None,
        "transformers": None,
        "huggingface_hub": None,
        "uvicorn": None,
        "ray": None,
    },
)


def test_what_is_not_promised_is_used_in_one_module() -> None:
    assert strays(PART) == []


def test_everything_that_is_used_is_listed() -> None:
    listed = [internal.where.replace(":", ".") for internal in INTERNALS]
    used = internals(PART)
    assert "vllm.model_executor.models.registry._run_in_subprocess" in used
    assert [name for name in used if not any(f"{row}.".startswith(f"{name}.") for row in listed)] == []


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.where)
def test_each_says_where_it_was_seen_why_it_is_used_and_what_would_replace_it(internal: Internal) -> None:
    assert re.match(r"vLLM \d+\.\d+", internal.seen)
    assert internal.why
    assert internal.instead


@pytest.mark.torch
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")
@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: internal.where)
def test_each_is_still_there(internal: Internal) -> None:
    if internal.where.endswith(".py"):
        spec = find_spec("vllm")
        assert spec is not None
        assert list(Path(str(spec.origin)).parent.glob(internal.where))
    elif ":" not in internal.where:
        assert find_spec(internal.where) is not None
    elif internal.before is None:
        assert load(internal.where.replace(":", ".")) is not None
    else:
        assert any(map(_is_there, (internal.where, internal.before)))


def _is_there(where: str) -> bool:
    try:
        return load(where.replace(":", ".")) is not None
    except AttributeError:
        return False
