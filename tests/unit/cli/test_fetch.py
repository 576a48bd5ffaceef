"""Files of a run, copied by the program that a pod would run."""

from pathlib import Path

import pytest

from gymtrain_client.errors import FetchError, FolderError
from gymtrain_client.files import fetch
from gymtrain_client.run_folder import reader_pod
from tests.unit.cli.fake_cluster import FakeCluster, pod

RUN = {
    "metadata": {"name": "r"},
    "spec": {"trainer": {"checkpoint": {"size": "1Gi"}}},
    "status": {"images": {"gym": "g:1", "trainer": "t:1", "inference": "i:1", "gateway": "w:1", "broker": "b:1"}},
}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    (folder / "model" / "sub").mkdir(parents=True)
    (folder / "model" / "weights").write_bytes(bytes(range(256)) * 40)
    (folder / "model" / "sub" / "config.json").write_text("{}")
    (folder / "rewards.csv").write_text("step,reward\n")
    (folder / ".gymtrain-run").write_text("uid")
    return folder


@pytest.fixture
def cluster(volume: Path) -> FakeCluster:
    made = FakeCluster(volume)
    made.runs["r"] = RUN
    made.found_pods = [pod("r-trainer-1-0", "trainer")]
    return made


def test_a_folder_arrives_whole_with_what_is_in_it(cluster: FakeCluster, volume: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = fetch(cluster, "r", "model", tmp_path / "out", lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    assert made == tmp_path / "out" / "model"
    assert (made / "weights").read_bytes() == (volume / "model" / "weights").read_bytes()
    assert (made / "sub" / "config.json").read_text() == "{}"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"], "nothing half done is left"
    assert seen[-1] == (10242, 10242)
    assert cluster.made_pods == []


def test_a_file_arrives(cluster: FakeCluster, tmp_path: Path) -> None:
    assert fetch(cluster, "r", "rewards.csv", tmp_path).read_text() == "step,reward\n"  # type: ignore[arg-type]


def test_what_is_not_there_is_answered_with_what_is(cluster: FakeCluster, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"no best in the run's folder; there is: model, rewards\.csv$"):
        fetch(cluster, "r", "best", tmp_path)  # type: ignore[arg-type]


def test_a_copy_that_was_damaged_is_not_kept(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.damage = lambda data: data.replace(bytes([7, 8, 9]), bytes([7, 8, 0]), 1)
    with pytest.raises(FetchError, match="model/weights did not arrive as it is"):
        fetch(cluster, "r", "model", tmp_path / "out")  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_copy_that_ends_early_is_not_kept(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.damage = lambda data: data[:3000]
    with pytest.raises(FetchError, match="did not arrive whole"):
        fetch(cluster, "r", "model", tmp_path / "out")  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_written_over(cluster: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(FetchError, match="is there already"):
        fetch(cluster, "r", "model", tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["..", "../other", "/etc/passwd", "model/../../other", ""])
def test_a_name_does_not_lead_out_of_the_runs_folder(cluster: FakeCluster, tmp_path: Path, name: str) -> None:
    with pytest.raises(FetchError, match="must be a name in the run's folder"):
        fetch(cluster, "r", name, tmp_path)  # type: ignore[arg-type]


def test_after_the_run_a_pod_of_its_own_reads_and_goes_away(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.found_pods = [pod("r-trainer-1-0", "trainer", "Succeeded")]
    fetch(cluster, "r", "model", tmp_path / "out")  # type: ignore[arg-type]
    (made,) = cluster.made_pods
    assert cluster.deleted_pods == [made["metadata"]["name"]]
    with pytest.raises(FetchError):
        fetch(cluster, "r", "best", tmp_path / "out")  # type: ignore[arg-type]
    assert len(cluster.deleted_pods) == 2, "also after an error"


def test_that_pod_may_do_nothing_but_read() -> None:
    made = reader_pod(RUN)
    spec, (container,) = made["spec"], made["spec"]["containers"]
    assert container["image"] == "t:1"
    assert container["volumeMounts"] == [
        {"name": "checkpoints", "mountPath": "/gymtrain/checkpoints", "readOnly": True}
    ]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == "r-checkpoints"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert spec["activeDeadlineSeconds"] > 0
    assert "gymtrain.dev/run" not in made["metadata"]["labels"], "the operator has nothing to do with it"


def test_of_another_trainer_neither_pod_nor_image_is_used(cluster: FakeCluster, tmp_path: Path) -> None:
    trainer = {"checkpoint": {"size": "1Gi"}, "image": "mine:1", "command": ["train"]}
    cluster.runs["r"] = RUN | {"spec": {"trainer": trainer}}
    fetch(cluster, "r", "model", tmp_path / "out")  # type: ignore[arg-type]
    (made,) = cluster.made_pods
    assert made["spec"]["containers"][0]["image"] == "t:1"


def test_on_a_users_own_claim_it_sees_the_runs_folder_alone() -> None:
    run = RUN | {"spec": {"trainer": {"checkpoint": {"claimName": "shared"}}}}
    (mount,) = reader_pod(run)["spec"]["containers"][0]["volumeMounts"]
    assert mount["subPath"] == "r"


def test_a_run_without_a_volume_says_so() -> None:
    with pytest.raises(FolderError, match=r"has no trainer\.checkpoint"):
        reader_pod({"metadata": {"name": "r"}, "spec": {}})
