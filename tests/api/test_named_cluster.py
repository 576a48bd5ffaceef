"""A cluster that the user names is the one that all later commands reach."""

import stat
from pathlib import Path

import pytest
import yaml

from dev.providers import choose
from dev.settings import Settings
from tests.support.apiserver import binary

CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "production",
    "clusters": [{"name": n, "cluster": {"server": f"https://{n}.example.com"}} for n in ("production", "lab")],
    "users": [{"name": n, "user": {"token": f"token-of-{n}"}} for n in ("production", "lab")],
    "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in ("production", "lab")],
}


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig of two clusters, named by KUBECONFIG."""
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(CONFIG))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("CONTEXT", raising=False)
    return path


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Folders of the test's own, and kubectl on the PATH."""
    monkeypatch.setenv("PATH", str(Path(binary("kubectl")).parent), prepend=":")
    return Settings(cache=tmp_path / "cache", state=tmp_path / "state")


def test_a_kubeconfig_is_used_as_it_is(settings: Settings, named: Path) -> None:
    assert choose(settings).kubeconfig() == named


def test_a_context_is_the_only_one_that_later_commands_see(
    settings: Settings, named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXT", "lab")
    path = choose(settings).kubeconfig()
    found = yaml.safe_load(path.read_text())
    assert [cluster["cluster"]["server"] for cluster in found["clusters"]] == ["https://lab.example.com"]
    assert found["current-context"] == "lab"
    assert found["users"] == [{"name": "lab", "user": {"token": "token-of-lab"}}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "it holds a token"


def test_several_kubeconfigs_are_read_as_kubectl_reads_them(
    settings: Settings, named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere/config:{named}")
    found = yaml.safe_load(choose(settings).kubeconfig().read_text())
    assert found["current-context"] == "production"
