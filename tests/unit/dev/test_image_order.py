import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.images.dockerfiles import Image
from dev.images.order import build_all
from dev.report import DevError


def _images(**needs: str) -> list[Image]:
    return [Image(name, Path(name), frozenset(of.split())) for name, of in needs.items()]


def _recorder(built: list[str], broken: str = "") -> Callable[[Image], None]:
    def build(image: Image) -> None:
        if image.name == broken:
            raise DevError("it does not build")
        built.append(image.name)

    return build


def _meet(others: threading.Barrier) -> None:
    others.wait()


def test_each_is_built_after_those_it_needs() -> None:
    built: list[str] = []
    build_all(_images(d="c b", c="a", b="a", a=""), _recorder(built))
    assert (built[0], sorted(built[1:3]), built[3]) == ("a", ["b", "c"], "d")


def test_what_others_wait_for_comes_first() -> None:
    built: list[str] = []
    build_all(_images(a="", b="", needed="", c="needed"), _recorder(built), at_once=1)
    assert built[0] == "needed"


def test_they_are_built_side_by_side() -> None:
    both = threading.Barrier(2, timeout=10)
    build_all(_images(a="", b=""), lambda image: _meet(both), at_once=2)


def test_a_broken_one_holds_up_only_what_needs_it() -> None:
    built: list[str] = []
    failed = build_all(_images(a="", b="", c="b", d="c"), _recorder(built, broken="b"))
    assert built == ["a"]
    assert {name: error.what for name, error in failed.items()} == {
        "b": "it does not build",
        "c": "gymtrain/c:dev is not built: it needs b",
        "d": "gymtrain/d:dev is not built: it needs c",
    }


def test_a_mistake_of_ours_is_not_swallowed() -> None:
    def build(image: Image) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build_all(_images(a=""), build)
