"""What vLLM compiles goes from one pod to the next, and the volume in between can't keep a server from starting."""

import errno
import os
import tarfile
from pathlib import Path

import pytest

from gymtrain_vllm import compile_cache
from gymtrain_vllm.compile_cache import CompileCache, keep_once_well, of_server

GRAPH = "vllm-cache/torch_compile_cache/1/rank_0_0/model"


class Pods:
    """Pods of one run: each has scratch space of its own, at the same path as far as the key goes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.volume = root / "volume"
        self.volume.mkdir()
        (root / "model").mkdir()
        (root / "model" / "config.json").write_text("{}")
        self.number = 0

    def start(self, *arguments: str) -> tuple[CompileCache, Path]:
        """A new pod's caches, and its scratch space."""
        self.number += 1
        scratch = self.root / f"pod-{self.number}"
        scratch.mkdir()
        folders = self.key(*arguments, root=str(scratch)).folders
        return CompileCache(self.key(*arguments).archive, folders), scratch

    def key(self, *arguments: str, root: str = "/gymtrain/scratch", flags: str = "avx2 sse") -> CompileCache:
        cpu_info = self.root / "cpuinfo"
        cpu_info.write_text(f"processor\t: 0\ncpu MHz\t\t: {self.number}\nflags\t\t: {flags}\n")
        environment = {
            "VLLM_CACHE_ROOT": f"{root}/vllm-cache",
            "TORCHINDUCTOR_CACHE_DIR": f"{root}/inductor",
            "TRITON_CACHE_DIR": f"{root}/triton",
        }
        return of_server(self.volume, arguments, self.root / "model", environment, cpu_info)

    def compile(self, scratch: Path, name: str = GRAPH, content: str = "compiled") -> None:
        file = scratch / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def compiled_by(self, *arguments: str) -> Path:
        """A pod that started with nothing, and its archive."""
        cache, scratch = self.start(*arguments)
        self.compile(scratch)
        cache.keep()
        return cache.archive

    def names(self) -> list[str]:
        return sorted(path.name for path in self.volume.iterdir())


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


def test_a_new_pod_has_what_the_first_one_compiled(pods: Pods) -> None:
    first, scratch = pods.start()
    first.load()
    pods.compile(scratch)
    kernel = scratch / "triton" / "a" / "kernel.so"
    pods.compile(scratch, "triton/a/kernel.so", "machine code")
    kernel.chmod(0o755)
    first.keep()
    second, scratch = pods.start()
    second.load()
    assert (scratch / GRAPH).read_text() == "compiled"
    assert os.access(scratch / "triton" / "a" / "kernel.so", os.X_OK)
    assert sorted(path.name for path in scratch.iterdir()) == ["triton", "vllm-cache"]
    assert [path.name for path in (scratch / "vllm-cache").iterdir()] == [
        "torch_compile_cache"
    ]  # nothing is left of loading


def test_what_is_new_joins_what_was_loaded(pods: Pods) -> None:
    pods.compiled_by()
    second, scratch = pods.start()
    second.load()
    pods.compile(scratch, "triton/b/kernel.so")
    second.keep()
    third, scratch = pods.start()
    third.load()
    assert (scratch / GRAPH).exists()
    assert (scratch / "triton/b/kernel.so").exists()


def test_a_pod_that_compiled_nothing_writes_nothing(pods: Pods) -> None:
    archive = pods.compiled_by()
    before = archive.stat().st_ino
    second, _ = pods.start()
    second.load()
    second.keep()
    assert archive.stat().st_ino == before


def test_files_that_vllm_is_writing_are_left_out(pods: Pods) -> None:
    cache, scratch = pods.start()
    pods.compile(scratch)
    pods.compile(scratch, GRAPH + ".147.tmp", "half")
    cache.keep()
    with tarfile.open(cache.archive) as archive:
        assert [name.rpartition("/")[2] for name in archive.getnames()] == ["model"]


def test_a_container_that_is_started_again_keeps_its_own(pods: Pods, capsys: pytest.CaptureFixture[str]) -> None:
    pods.compiled_by()
    cache, scratch = pods.start()
    pods.compile(scratch, content="its own")
    capsys.readouterr()
    cache.load()
    assert (scratch / GRAPH).read_text() == "its own"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("left", [0, 300, 516])  # nothing, half of a header, half of a file
def test_a_damaged_archive_is_replaced(pods: Pods, left: int, capsys: pytest.CaptureFixture[str]) -> None:
    archive = pods.compiled_by()
    archive.write_bytes(archive.read_bytes()[:left])
    cache, scratch = pods.start()
    cache.load()
    assert f"{archive} is damaged" in capsys.readouterr().out
    assert not list(scratch.iterdir())
    pods.compile(scratch)
    cache.keep()
    again, scratch = pods.start()
    again.load()
    assert (scratch / GRAPH).read_text() == "compiled"


def test_an_archive_that_leads_out_of_the_folder_is_refused(pods: Pods) -> None:
    cache, scratch = pods.start()
    (pods.root / "evil").write_text("x")
    with tarfile.open(cache.archive, "w") as archive:
        archive.add(pods.root / "evil", "vllm/../../../evil-out")
    cache.load()
    assert not list(scratch.iterdir())
    assert not cache.archive.exists()


@pytest.fixture
def room(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many archives the volume takes: the one item."""
    archives = [0]
    fsync = os.fsync

    def full(file: int) -> None:
        if len(list(pods.volume.glob("*.tar"))) >= archives[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    return archives


def test_a_full_volume_loses_what_was_not_used_for_longest(pods: Pods, room: list[int]) -> None:
    room[0] = 2
    old, used = pods.compiled_by("--old"), pods.compiled_by("--used")
    os.utime(old, (2, 2))
    os.utime(used, (1, 1))
    cache, _ = pods.start("--used")
    cache.load()  # which makes it the younger one
    new = pods.compiled_by("--new")
    assert pods.names() == sorted([used.name, new.name])


def test_a_volume_that_is_too_small_is_told_and_nothing_is_left_on_it(
    pods: Pods, room: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    pods.compiled_by()
    assert "the volume is too small" in capsys.readouterr().out
    assert pods.names() == []


def test_a_volume_that_cannot_be_written_is_told(pods: Pods, capsys: pytest.CaptureFixture[str]) -> None:
    pods.volume.rmdir()
    pods.volume.write_text("no folder")
    cache, scratch = pods.start()
    cache.load()
    pods.compile(scratch)
    cache.keep()
    said = capsys.readouterr().out
    assert "can't be loaded" in said
    assert "can't be kept" in said


def test_what_killed_pods_began_is_removed_and_what_others_write_stays(pods: Pods) -> None:
    old, young = pods.volume / ".old.tmp", pods.volume / ".young.tmp"
    for file in (old, young):
        file.touch()
    os.utime(old, (1, 1))
    archive = pods.compiled_by()
    assert pods.names() == sorted([young.name, archive.name])


def test_servers_share_an_archive_if_they_differ_in_seed_and_port_alone(pods: Pods) -> None:
    one = pods.key("--seed=1", "--port=8000", "--dtype=float32").archive
    assert one == pods.key("--seed=2", "--port=8001", "--dtype=float32").archive
    assert one == pods.key("--seed=2", "--port=8001", "--dtype=float32", "--master-addr=10.0.0.1").archive
    assert one != pods.key("--seed=1", "--port=8000", "--dtype=float32", "--node-rank=1").archive
    assert one != pods.key("--seed=1", "--port=8000", "--dtype=bfloat16").archive
    assert one != pods.key("--seed=1", "--port=8000", "--dtype=float32", root="/elsewhere").archive
    (pods.root / "model" / "config.json").write_text('{"hidden_size": 8}')
    assert one != pods.key("--seed=1", "--port=8000", "--dtype=float32").archive


def test_servers_share_an_archive_only_on_processors_with_the_same_instructions(pods: Pods) -> None:
    assert pods.key().archive == pods.key(flags="sse avx2").archive
    assert pods.key().archive != pods.key(flags="avx2 avx512f sse").archive


def test_what_vllm_notes_about_its_own_node_stays_there(pods: Pods) -> None:
    cache, scratch = pods.start()
    pods.compile(scratch)
    pods.compile(scratch, "vllm-cache/gpu_p2p_access_cache_for_0,1.json", '{"0->1": true}')
    cache.keep()
    other, scratch = pods.start()
    other.load()
    assert [path.name for path in (scratch / "vllm-cache").iterdir()] == ["torch_compile_cache"]


def test_another_release_has_an_archive_of_its_own(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pods.key().archive
    monkeypatch.setattr(compile_cache, "version", lambda package: "99")
    assert pods.key().archive != before


class _EndError(Exception):
    pass


def test_a_server_keeps_nothing_before_it_is_healthy_and_looks_again_for_kernels_of_later(pods: Pods) -> None:
    cache, scratch = pods.start()
    pods.compile(scratch)
    health, there = iter([False, False, True]), []
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        there.append(cache.archive.exists())
        if len(waits) == 3:
            pods.compile(scratch, "triton/later.so")
        if len(waits) == 12:
            raise _EndError

    with pytest.raises(_EndError):
        keep_once_well(cache, lambda: next(health), pause)
    assert there[:3] == [False, False, True]
    assert waits[2:] == sorted(waits[2:])
    assert waits[-1] == 3600
    with tarfile.open(cache.archive) as archive:
        assert "triton/later.so" in archive.getnames()
