"""The check by which a part keeps what its libraries don't promise in one module."""

import sys
from pathlib import Path

import pytest

from tests.support.upstream_privates import Part, internals, load, strays, uses

LIBRARIES = {"lib": ("lib", "lib.config"), "other": None}


def found(source: str, *own: str) -> list[tuple[str, str]]:
    return [(use.name, use.why) for use in uses(source, LIBRARIES, own)]


@pytest.mark.parametrize(
    "source",
    [
        "from lib import a",
        "import lib.config",
        "from lib.config import b\nb.c",
        "from other.deep.module import d",
        "import os\nos._exit(1)",
        "from unknown._private import e",
        "self._mine",
        "row._asdict()",
        "x.__class__",
        "a.b = 1",
        "f(_mine=1, a='_', b='__metadata__', c='_no name')",
        "text.replace('__', '_1776_')",
    ],
)
def test_what_is_promised_or_ours_is_no_use(source: str) -> None:
    assert found(source, "_mine") == []


@pytest.mark.parametrize(
    ("source", "name", "why"),
    [
        ("from lib.engine import a", "lib.engine.a", "not promised"),
        ("import lib.engine", "lib.engine", "not promised"),
        ("def f():\n    from lib.engine import a", "lib.engine.a", "not promised"),
        ("from lib import _a", "lib._a", "private"),
        ("import other._core", "other._core", "private"),
        ("from lib import a as b\nb._c", "lib.a._c", "private"),
        ("import other as o\no.deep._c()", "other.deep._c", "private"),
        ("import other\nother.run = 1", "other.run", "replaced"),
        ("from other import a\nsetattr(a, 'run', 1)", "other.a.run", "replaced"),
        ("from other import a\ndel a.run", "other.a.run", "replaced"),
        ("trainer._step = 1", "_step", "private, and not ours"),
        ("self._step", "_step", "private, and not ours"),
        ("f(_step=1)", "_step", "private, and not ours"),
        ("getattr(x, '_step')", "_step", "private, and not ours"),
    ],
)
def test_what_is_not_promised_is_told_with_its_reason(source: str, name: str, why: str) -> None:
    assert found(source) == [(name, why)]


@pytest.fixture
def part(tmp_path: Path) -> Part:
    """Two modules; `internals.py` may use what is not promised."""
    (tmp_path / "internals.py").write_text(
        "try:\n    from lib.new import a\nexcept ImportError:\n    from lib.old import a\n"
        "from lib import b\nb._c = a\nclass D:\n    _e = 1\n"
    )
    (tmp_path / "rest.py").write_text("from lib import b\nb\nD._e\nb._f\n")
    return Part(tmp_path, "internals.py", LIBRARIES)


def test_only_other_modules_have_strays(part: Part) -> None:
    assert strays(part) == ["rest.py:4: lib.b._f is private"]


def test_fallbacks_for_other_releases_need_not_be_there(part: Part) -> None:
    assert internals(part) == ["lib.b._c", "lib.new.a"]


def test_a_name_is_loaded_from_the_module_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").touch()
    (tmp_path / "made_up" / "inner.py").write_text("class A:\n    _b = 3\n")
    (tmp_path / "made_up" / "broken.py").write_text("import made_up_needs_this\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("made_up.inner.A._b") == 3
    with pytest.raises(AttributeError):
        load("made_up.inner.B")
    with pytest.raises(ImportError, match="made_up_needs_this"):
        load("made_up.broken.A")
    for name in [name for name in sys.modules if name.startswith("made_up")]:
        monkeypatch.delitem(sys.modules, name)
