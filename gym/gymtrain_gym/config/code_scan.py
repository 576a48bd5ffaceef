"""What a server's source code says about how to run it, without running it.

The scan starts at the entrypoint and follows imports into the folders of Gym servers; tests and scripts that
the server never imports don't count.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from gymtrain_gym.config.server_config import SERVER_TYPES

# How a server gets at the id of the session that its cookie carries.
SESSION_MARKS = ("SESSION_ID_KEY", "request.session")


@dataclass(frozen=True)
class ServerCode:
    """Findings about one server's code."""

    needs_ray: bool  # it imports ray itself; NeMo Gym's own use doesn't count
    keeps_sessions: bool  # it stores state by session id, so replicas are not interchangeable
    missing_modules: tuple[str, ...]  # imported on start-up, but not installed here
    missing_later: tuple[str, ...] = ()  # imported by code that may never run, and not installed here


@dataclass(frozen=True)
class _Import:
    module: str  # dotted; relative ones are made absolute where the package is known
    eager: bool  # at the top of the module: runs on import


def scan(folder: Path, entrypoint: str, roots: list[Path]) -> ServerCode:
    """Reads the code of the server in `folder`; `roots` hold the packages of Gym servers."""
    todo: list[tuple[Path, bool]] = [(folder / entrypoint, True)]
    seen: dict[Path, bool] = {}
    ray = sessions = False
    missing: set[str] = set()
    later: set[str] = set()
    while todo:
        file, eager = todo.pop()
        if seen.get(file, not eager) >= eager and file in seen:
            continue
        seen[file] = eager
        try:
            source = file.read_text()
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            continue  # the server itself will say so
        sessions = sessions or any(mark in source for mark in SESSION_MARKS)
        for found in _imports(tree, file, roots):
            top = found.module.partition(".")[0]
            if top == "ray":
                ray = True
            local = _local_files(found.module, folder, roots)
            todo.extend((path, eager and found.eager) for path in local)
            if not local and not _installed(top, roots):
                (missing if eager and found.eager else later).add(top)
    return ServerCode(ray, sessions, tuple(sorted(missing)), tuple(sorted(later - missing)))


def _imports(tree: ast.Module, file: Path, roots: list[Path]) -> Iterator[_Import]:
    top_level = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        eager = id(node) in top_level
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _Import(alias.name, eager)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = _package(file, node.level, roots)
                if package is None:
                    continue
                base = f"{package}.{base}".rstrip(".")
            yield _Import(base, eager)
            # `from package import module`
            for alias in node.names:
                if base.partition(".")[0] in SERVER_TYPES:
                    yield _Import(f"{base}.{alias.name}", eager)


def _package(file: Path, level: int, roots: list[Path]) -> str | None:
    for root in roots:
        if file.is_relative_to(root):
            parts = file.relative_to(root).parts[: -level or None]
            return ".".join(parts) if parts and parts[0] in SERVER_TYPES else None
    return None


def _local_files(module: str, folder: Path, roots: list[Path]) -> list[Path]:
    """Files that importing `module` runs, where it is code of a Gym server."""
    parts = module.split(".")
    bases = [folder, *(roots if parts[0] in SERVER_TYPES else [])]
    for base in bases:
        path = base.joinpath(*parts)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return [candidate]
        if path.is_dir() and parts[0] in SERVER_TYPES:
            return [path]  # a namespace package: nothing to read, but it is there
    if parts[0] in SERVER_TYPES and len(parts) > 2:
        return _local_files(".".join(parts[:-1]), folder, roots)  # a name in a module
    return []


def _installed(top: str, roots: list[Path]) -> bool:
    if not top or top == "__future__":
        return True
    import sys

    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top in sys.modules:
        return True
    return PathFinder.find_spec(top, [*sys.path, *map(str, roots)]) is not None
