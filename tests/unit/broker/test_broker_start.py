"""What keeps a broker from starting."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymtrain_broker import settings
from gymtrain_broker.errors import StartError
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.throttled_client import ThrottledClient
from tests.support.specs import of_a_later_release, smallest_run


def _files(folder: Path, *, token: str = "secret\n", uid: str = "u", **spec: Any) -> tuple[Path, Path]:
    hosts = {"inference_url": "", "inference_pods_host": "", "trainer_host": ""}
    run = {"name": "r", "namespace": "ns", "uid": uid, "spec": smallest_run(**spec)["spec"], **hosts}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "token").write_text(token)
    return folder / "run.json", folder / "token"


def test_the_settings_come_from_the_run(tmp_path: Path) -> None:
    files = _files(tmp_path, sandboxes={"maxConcurrent": 3}, serviceAccountName="puller")
    found = settings.read(*files)
    assert (found.run, found.namespace, found.uid, found.run_token) == ("r", "ns", "u", "secret")
    assert (found.spec.max_concurrent, found.service_account) == (3, "puller")


def test_a_run_json_of_a_later_release_is_read(tmp_path: Path) -> None:
    """The operator was upgraded, the broker's pod was not, and its container starts again."""
    files = _files(tmp_path, sandboxes={"warmPools": [{"image": "a:1"}]})
    before = settings.read(*files)
    files[0].write_text(json.dumps(of_a_later_release(json.loads(files[0].read_text()))))
    assert settings.read(*files) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sandboxes": None}, "no spec.sandboxes"),
        ({"sandboxes": {}, "token": " \n"}, "is empty"),
        ({"sandboxes": {}, "uid": ""}, "no uid"),
        ({"sandboxes": {"maxConcurrent": 0}}, "a run.json of this release"),
    ],
)
def test_a_broker_that_can_t_work_says_why(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        settings.read(*_files(tmp_path, **changes))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"token"):
        settings.read(_files(tmp_path, sandboxes={})[0], tmp_path / "nowhere" / "token")


def test_outside_a_cluster_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("GYMTRAIN_API_URL", raising=False)
    with pytest.raises(StartError, match="GYMTRAIN_API_URL"):
        ThrottledClient.connect(Metrics())


def test_a_service_account_that_can_t_be_read_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMTRAIN_API_URL", "https://api")
    monkeypatch.setenv("GYMTRAIN_API_CA_FILE", str(tmp_path / "ca.crt"))
    with pytest.raises(StartError, match="automountServiceAccountToken"):
        ThrottledClient.connect(Metrics())
