"""README promises that what is replaced or private of NeMo Gym, TRL and vLLM is listed: it is, in docs/upstream.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

from gymtrain_trainer.trl.settings import NEUTRAL_SAMPLING, OWNED_KEYS

ROOT = Path(__file__).parents[3]
CODE = ["trainer/gymtrain_trainer", "gym/gymtrain_gym", "inference/gymtrain_vllm"]
UPSTREAM = ("trl", "vllm", "nemo_gym", "ray", "uvicorn", "minisweagent", "responses_api_agents")
# What our code calls TRL's trainer.
TRAINERS = {"trainer", "self._trainer"}


def _uses(source: str) -> Iterator[str]:
    """Private names of upstream that are read or imported, and names of upstream that are assigned to."""
    tree = ast.parse(source)
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UPSTREAM:
            imported |= {alias.asname or alias.name for alias in node.names}
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] in UPSTREAM}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        upstream = owner in imported or owner in TRAINERS
        if upstream and (node.attr.startswith("_") or (isinstance(node.ctx, ast.Store) and owner in imported)):
            yield node.attr


def uses() -> dict[str, str]:
    """By name, a file that has it."""
    files = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    return {name: str(path.relative_to(ROOT)) for path in files for name in _uses(path.read_text())}


def test_private_and_replaced_names_are_recognised() -> None:
    source = """
import uvicorn
from trl.x import _a, b
uvicorn.run = 1
b._c
trainer._d = 2
uvicorn.Config
trainer.state
"""
    assert set(_uses(source)) == {"_a", "run", "_c", "_d"}


def test_everything_private_or_replaced_is_listed() -> None:
    text = (ROOT / "docs/upstream.md").read_text()
    found = uses()
    assert {"_iter_vllm_named_params", "_save_checkpoint", "run"} <= found.keys()
    missing = {name: where for name, where in found.items() if f"`{name}`" not in text and f".{name}`" not in text}
    assert missing == {}, "docs/upstream.md doesn't name them"


def test_every_trl_setting_that_is_refused_is_documented() -> None:
    text = (ROOT / "docs/trainer-settings.md").read_text()
    missing = [name for name in (*OWNED_KEYS, *NEUTRAL_SAMPLING) if f"| `{name}` |" not in text]
    assert missing == [], "docs/trainer-settings.md has no row for them"
