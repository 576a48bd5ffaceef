"""The image for CPUs leaves out packages that there are, by one list."""

import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
LEFT_OUT: dict[str, tuple[str, ...]] = runpy.run_path(str(ROOT / "images/runtime/gpu_stand_ins.py"))["LEFT_OUT"]


def test_what_is_left_out_is_in_the_lock_file() -> None:
    locked = {package["name"] for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert LEFT_OUT.keys() - locked == set()


def test_the_dockerfile_has_no_list_of_its_own() -> None:
    text = (ROOT / "images/runtime/Dockerfile").read_text()
    assert [name for name in LEFT_OUT if name in text] == []
