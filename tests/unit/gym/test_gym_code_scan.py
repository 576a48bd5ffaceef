"""What a server's code says about how to run it."""

from pathlib import Path

import pytest

from gymtrain_gym.config import code_scan
from gymtrain_gym.server import workspace

pytestmark = pytest.mark.gym


def scan(root: Path, **files: str) -> code_scan.ServerCode:
    folder = root / "resources_servers" / "probe"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return code_scan.scan(folder, "app.py", [root])


def scan_real(folder: str) -> code_scan.ServerCode:
    roots = workspace.roots()
    found = workspace.find(Path(folder), roots)
    assert found is not None
    return code_scan.scan(found, "app.py", roots)


def test_plain_server_needs_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path, app="import json\n") == code_scan.ServerCode(False, False, ())


def test_ray_in_an_imported_module_counts(tmp_path: Path) -> None:
    assert scan(tmp_path, app="from resources_servers.probe.work import f\n", work="import ray\n").needs_ray


def test_ray_in_a_relative_import_counts(tmp_path: Path) -> None:
    assert scan(tmp_path, app="from .work import f\n", work="import ray\n").needs_ray


def test_ray_inside_a_function_counts(tmp_path: Path) -> None:
    assert scan(tmp_path, app="def f():\n    from ray import get\n").needs_ray


def test_ray_in_a_script_that_is_never_imported_does_not_count(tmp_path: Path) -> None:
    assert not scan(tmp_path, app="import json\n", prepare="import ray\n").needs_ray


def test_missing_package_is_named(tmp_path: Path) -> None:
    assert scan(tmp_path, app="import surely_not_installed.part\n").missing_modules == ("surely_not_installed",)


def test_missing_package_of_an_imported_module_is_named(tmp_path: Path) -> None:
    code = scan(tmp_path, app="import work\n", work="import surely_not_installed\n")
    assert code.missing_modules == ("surely_not_installed",)


def test_optional_imports_are_not_missing(tmp_path: Path) -> None:
    text = "try:\n    import nope_a\nexcept ImportError:\n    pass\ndef f():\n    import nope_b\n"
    assert scan(tmp_path, app=text).missing_modules == ()


def test_circular_imports_end(tmp_path: Path) -> None:
    assert not scan(tmp_path, app="import work\n", work="import app\n").needs_ray


@pytest.mark.parametrize("folder", ["reasoning_gym", "mcqa", "math_with_judge"])
def test_upstreams_stateless_servers_run_plainly(folder: str) -> None:
    assert scan_real(f"resources_servers/{folder}") == code_scan.ServerCode(False, False, ())


@pytest.mark.parametrize("folder", ["workplace_assistant", "example_session_state_mgmt", "blackjack"])
def test_upstreams_stateful_servers_keep_sessions(folder: str) -> None:
    assert scan_real(f"resources_servers/{folder}").keeps_sessions


@pytest.mark.parametrize("folder", ["code_gen", "evalplus", "swerl_gen"])
def test_upstreams_users_of_ray_are_found(folder: str) -> None:
    assert scan_real(f"resources_servers/{folder}").needs_ray
