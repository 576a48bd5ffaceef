"""Which names of a library the code uses that the library doesn't promise: told from the source, nothing is imported.

A part of the project keeps such names in one module, and its tests say so:

    PART = Part(ROOT / "inference/gymtrain_vllm", "vllm_internals.py", {"vllm": ("vllm", "vllm.config"), "torch": None})

    assert strays(PART) == []  # no other module of the part uses any
    internals(PART)            # what that module uses
    load("vllm.x.y.name")      # where the library is installed: it is still there

What counts: modules that are not promised; names with a leading underscore, on a library's own names and on any
object that the part's code doesn't define (a trainer's `_step_samples`, or `self._step_samples` in a subclass), as
arguments and as texts that may name an attribute too (`getattr(x, "_y")`); and attributes of a library's names that are
assigned to or deleted. Paths in texts don't count (`import_module("vllm.x")`).
"""

import ast
import importlib
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeIs

# Public in spite of their underscore, as a tuple's names could clash with them.
_NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")
_OF_TEXT = (
    "endswith",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "split",
    "startswith",
)  # no names in them


@dataclass(frozen=True)
class Part:
    """A part of the project.

    Attributes:
        folder: of its package.
        internals: the module in which such names may stand, below the folder.
        libraries: by top-level package: the modules whose public names are promised; None where all modules are public
            that have no underscore.
    """

    folder: Path
    internals: str
    libraries: Mapping[str, Collection[str] | None]


@dataclass(frozen=True, order=True)
class Use:
    """One place where such a name is used."""

    line: int
    name: str  # with dots, from the library's package on; an attribute alone where the object's class isn't known
    why: str


def strays(part: Part) -> list[str]:
    """The uses outside the module for them, a line each."""
    own = own_names(part.folder)
    return [
        f"{path.relative_to(part.folder)}:{use.line}: {use.name} is {use.why}"
        for path in sorted(part.folder.rglob("*.py"))
        if path != part.folder / part.internals
        for use in uses(path.read_text(), part.libraries, own)
    ]


def internals(part: Part) -> list[str]:
    """The names of libraries in the module for them. Fallbacks for other releases are left out."""
    source = (part.folder / part.internals).read_text()
    found = uses(source, part.libraries, own_names(part.folder), fallbacks=False)
    return sorted({use.name for use in found if use.name.partition(".")[0] in part.libraries})


def load(name: str) -> Any:
    """The object of a name with dots.

    Raises:
        ImportError, AttributeError: it is no longer there.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        return importlib.import_module(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # the module is there, and lacks something that it imports
    return getattr(load(module), attribute)


def uses(
    source: str,
    libraries: Mapping[str, Collection[str] | None],
    own: Collection[str] = (),
    *,
    fallbacks: bool = True,
) -> list[Use]:
    """The uses in one module's source.

    Args:
        source: of the module.
        libraries: as in `Part`.
        own: private names that the project defines itself.
        fallbacks: whether imports count that stand in an `except`, for where the first ones fail.
    """
    tree = ast.parse(source)
    skipped = set() if fallbacks else {id(node) for node in _in_handlers(tree)}
    skipped |= {id(text) for node in ast.walk(tree) if _asks_of_text(node) for text in node.args}
    bound = dict(_bound(tree))  # names of the module, by what they stand for
    found: set[Use] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= set(_of_import(node, libraries))
        elif isinstance(node, ast.Attribute):
            found |= set(_of_attribute(node, bound, libraries, own))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr") and len(node.args) > 1:
            owner, name = _dotted(node.args[0], bound), node.args[1]
            if owner and owner.partition(".")[0] in libraries and isinstance(name, ast.Constant):
                found.add(Use(node.lineno, f"{owner}.{name.value!s}", "replaced"))
        elif isinstance(node, ast.keyword) and node.arg and _is_private(node.arg) and node.arg not in own:
            found.add(Use(node.value.lineno, node.arg, "private, and not ours"))
        elif isinstance(node, ast.Constant) and _is_private_text(node.value) and node.value not in own:
            found.add(Use(node.lineno, str(node.value), "private, and not ours"))
    return sorted(found)


def _of_import(node: ast.Import | ast.ImportFrom, libraries: Mapping[str, Collection[str] | None]) -> Iterator[Use]:
    if isinstance(node, ast.Import):
        imported = [(alias.name, "") for alias in node.names]
    else:
        imported = [(node.module or "", alias.name) for alias in node.names] if not node.level else []
    for module, name in imported:
        library = module.partition(".")[0]
        if library not in libraries:
            continue
        full = f"{module}.{name}" if name else module
        promised = libraries[library]
        if any(_is_private(step) for step in full.split(".")):
            yield Use(node.lineno, full, "private")
        elif promised is not None and module not in promised and full not in promised:
            yield Use(node.lineno, full, "not promised")


def _of_attribute(
    node: ast.Attribute,
    bound: Mapping[str, str],
    libraries: Mapping[str, Collection[str] | None],
    own: Collection[str],
) -> Iterator[Use]:
    owner = _dotted(node.value, bound)
    package = owner.partition(".")[0] if owner else ""
    if package in libraries:
        full = f"{owner}.{node.attr}"
        if not isinstance(node.ctx, ast.Load):
            yield Use(node.lineno, full, "replaced")
        elif _is_private(node.attr):
            yield Use(node.lineno, full, "private")
    elif _is_private(node.attr) and node.attr not in own and package not in sys.stdlib_module_names:
        yield Use(node.lineno, node.attr, "private, and not ours")


def _is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.endswith("__") and name not in _NAMED_TUPLE


def _asks_of_text(node: ast.AST) -> TypeIs[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TEXT


def _is_private_text(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier() and _is_private(value)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _dotted(node: ast.expr, bound: Mapping[str, str]) -> str | None:
    """What an expression stands for, where it is an imported name or an attribute of one."""
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, bound)
        return f"{owner}.{node.attr}" if owner else None
    return None


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that imports bind, at the top of the module or further down, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (package, package)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _in_handlers(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            yield from ast.walk(node)


def own_names(folder: Path) -> set[str]:
    """Private names that the code in a folder defines: functions, classes, variables, and what it sets on itself."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                found.add(node.attr)
    return found
