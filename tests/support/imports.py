"""What a Python file imports, read from its text."""

import ast
from collections.abc import Iterator
from pathlib import Path


def imported(file: Path) -> Iterator[str]:
    """Modules, as `a.b`, inside functions too; where something is taken from one, `a.b.something`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
