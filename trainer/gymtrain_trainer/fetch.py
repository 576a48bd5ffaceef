"""`python -m gymtrain_trainer.fetch [--without-weights]`: fetches an hf:// model into /gymtrain/model, once.

The init container of pods whose model comes from the hub. HF_TOKEN holds the token of a gated repository. Preflight
looks at config and tokenizer alone: where no volume keeps the model, it leaves the weights to the pods that load them.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gymtrain_api.sources import HuggingFace, parse_model_source
from gymtrain_api.wiring import ExitCode
from gymtrain_trainer.context import read_paths, read_run_config
from gymtrain_trainer.errors import FetchError, ModelFolderError, TrainerError

log = logging.getLogger("gymtrain_trainer.fetch")

_MARK = ".gymtrain-model"  # written last: repository and revision of a whole copy
_WEIGHTS = ["*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt"]
WITHOUT_WEIGHTS = "--without-weights"
_TRIES = 5
_BACKOFF_SECONDS = 5.0
_REPORT_SECONDS = 10.0
_STALL_SECONDS = 600.0  # without anything done; the library has tried again by then
# Other formats of the same weights, and what no loader reads
_IGNORED = ["*.gguf", "*.onnx", "onnx/*", "*.h5", "*.msgpack", "*.ot", "*.pth", "original/*", "*.tflite", "*.mlmodel"]


def lacks_weights(folder: Path) -> bool:
    """Whether `folder` was filled without weights, on purpose."""
    try:
        return (folder / _MARK).read_text().endswith(WITHOUT_WEIGHTS)
    except OSError:
        return False


def fetch(repo_id: str, revision: str | None, folder: Path, token: str | None, *, weights: bool = True) -> None:
    """Copies a repository of the hub into `folder`. A whole copy of the same revision is left as it is.

    Raises:
        ModelFolderError: the repository or revision doesn't exist, or the token doesn't open it.
        FetchError: the hub couldn't be reached, or the volume is full.
    """
    mark, wanted = folder / _MARK, f"{repo_id}@{revision or 'main'}" + ("" if weights else f" {WITHOUT_WEIGHTS}")
    ignored = _IGNORED if weights else [*_IGNORED, *_WEIGHTS]
    if mark.exists() and mark.read_text() == wanted:
        log.info("%s is already in %s", wanted, folder)
        return
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    ended = threading.Event()
    threading.Thread(target=_report, args=(f"hf://{repo_id}", folder, ended), daemon=True).start()
    log.info("fetching %s", wanted)
    try:
        for attempt in range(1, _TRIES + 1):
            try:
                snapshot_download(
                    repo_id, revision=revision, local_dir=folder, token=token or False, ignore_patterns=ignored
                )
                break
            except GatedRepoError as error:
                raise ModelFolderError(
                    f"hf://{repo_id} is gated: accept its terms on the hub and name a token in spec.model.tokenSecret"
                    + (" (the token given has no access)" if token else "")
                ) from error
            except RevisionNotFoundError as error:
                raise ModelFolderError(
                    f"hf://{repo_id} has no revision {revision!r}: see spec.model.revision"
                ) from error
            except RepositoryNotFoundError as error:
                raise ModelFolderError(
                    f"hf://{repo_id} doesn't exist, or is private: then name a token in spec.model.tokenSecret"
                ) from error
            except HFValidationError as error:
                raise ModelFolderError(f"hf://{repo_id} isn't a repository name: {error}") from error
            except Exception as error:
                reason = " ".join(str(error).split())[:300]
                if attempt == _TRIES:
                    raise FetchError(f"fetching hf://{repo_id} failed {_TRIES} times, at last: {reason}") from error
                log.warning("try %d of %d failed: %s", attempt, _TRIES, reason)
                time.sleep(_BACKOFF_SECONDS * attempt)
    finally:
        ended.set()
    mark.write_text(wanted)
    log.info("fetched %s: %.1f MB", wanted, _size(folder) / 1e6)


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:  # a temporary file that went meanwhile
            continue
    return total


def _read_mib() -> int:
    """What this process has read from files: of files that are there, the library may compute checksums for long."""
    try:
        return int(Path("/proc/self/io").read_text().split()[1]) // 2**20
    except OSError:
        return 0


def _report(what: str, folder: Path, ended: threading.Event) -> None:
    """Says now and then how much is there, as a model takes minutes, and ends a process that waits for nothing: the
    library asks the hub without a limit of time, and a connection may be lost without a word."""
    before, moved = (-1, -1), time.monotonic()
    while not ended.wait(_REPORT_SECONDS):
        size = _size(folder)
        log.info("%.1f MB so far", size / 1e6)
        if (now := (size, _read_mib())) != before:  # a try that begins anew makes the folder smaller first
            before, moved = now, time.monotonic()
        elif time.monotonic() - moved > _STALL_SECONDS:
            reason = f"{what}: nothing came for {_STALL_SECONDS:.0f} s, after {size / 1e6:.1f} MB"
            print(f"gymtrain: {reason}", file=sys.stderr, flush=True)
            _leave_to_operator(reason, read_paths(os.environ).termination_log)
            os._exit(ExitCode.RETRY)


def _leave_to_operator(reason: str, termination_log: Path) -> None:
    try:
        termination_log.write_text(reason[:4096])
    except OSError:
        log.info("no termination log at %s", termination_log)


def main(environ: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> int:
    """Fetches the model of run.json; the message of a failure also goes to the termination log."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    paths = read_paths(environ)
    try:
        model = read_run_config(environ).spec.model
        source = parse_model_source(model.source)
        if not isinstance(source, HuggingFace):
            raise ModelFolderError(f"{model.source} needs no fetching; only hf:// does")
        paths.model.mkdir(parents=True, exist_ok=True)
        weights = WITHOUT_WEIGHTS not in arguments
        fetch(source.repo_id, model.revision, paths.model, environ.get("HF_TOKEN"), weights=weights)
    except TrainerError as error:
        log.error("%s", error)
        _leave_to_operator(str(error), paths.termination_log)
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(arguments=sys.argv[1:]))
