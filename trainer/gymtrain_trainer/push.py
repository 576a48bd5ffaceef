"""`python -m gymtrain_trainer.push [--check]`: uploads the final model to where `spec.trainer.push` says.

The trainer's first process starts it once the model is whole, as a process of its own: whatever the upload does, it
ends at a deadline, and can't harm what is on the volume. Keys come as variables with a prefix (`wiring.PUSH_PREFIX`),
which only this process takes off, so that nothing else finds them under the names that libraries look for.

With `--check`, for preflight: finds out whether the keys open the place, and uploads no model. To push by hand, run it
in a pod of the trainer's image with the checkpoint volume.

| exit code | |
|---|---|
| 0 | done; the last line says where the model is |
| 78 | refused: no key, a wrong one, or a place that it doesn't open; the last line says why |
| 1 | anything else, such as no network |
"""

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymtrain_api.spec import Push
from gymtrain_api.wiring import PUSH_PREFIX, ExitCode
from gymtrain_trainer.checkpoints.final_model import model_folder
from gymtrain_trainer.context import read_paths, read_run_config
from gymtrain_trainer.errors import PushError, PushRefusedError, TrainerError

log = logging.getLogger("gymtrain_trainer.push")

CHECK = "--check"
_TRIES = 3
_BACKOFF_SECONDS = 10.0
_LENGTH = 500  # characters of an error
_MARK = ".gymtrain-preflight"


def unprefixed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the keys of the push under the names that libraries look for."""
    plain = {name: value for name, value in environ.items() if not name.startswith(PUSH_PREFIX)}
    keys = {name.removeprefix(PUSH_PREFIX): value for name, value in environ.items() if name.startswith(PUSH_PREFIX)}
    return plain | keys


def push(settings: Push, folder: Path, *, title: str) -> str:
    """Uploads a folder; returns where it is.

    Raises:
        PushRefusedError: a key or a name is wrong.
        PushError: it failed some times.
    """
    scheme, _, place = settings.to.partition("://")
    do = _to_hub if scheme == "hf" else _to_store
    for attempt in range(1, _TRIES + 1):
        try:
            return do(settings, place, folder, title)
        except Exception as error:
            if (refusal := _refusal(error)) is not None:
                raise PushRefusedError(f"{settings.to}: {refusal}") from error
            if attempt == _TRIES:
                raise PushError(f"{settings.to}: failed {_TRIES} times, at last: {_one_line(error)}") from error
            log.warning("try %d of %d failed: %s", attempt, _TRIES, _one_line(error))
            time.sleep(_BACKOFF_SECONDS * attempt)
    raise AssertionError("the last try returns or raises")


def check(settings: Push) -> None:
    """Whether the place takes a model.

    Raises:
        PushRefusedError: it doesn't.
        PushError: it can't be reached from here.
    """
    scheme, _, place = settings.to.partition("://")
    try:
        if scheme == "hf":
            _check_hub(place)
        else:
            files, path = _store(settings.to)
            mark = f"{path.rstrip('/')}/{_MARK}"
            files.pipe_file(mark, b"")
            files.rm_file(mark)
    except Exception as error:
        if isinstance(error, PushRefusedError):
            raise
        if (refusal := _refusal(error)) is not None:
            raise PushRefusedError(f"{settings.to}: {refusal}") from error
        raise PushError(f"{settings.to}: {_one_line(error)}") from error


# --- the hub ---


def _to_hub(settings: Push, place: str, folder: Path, title: str) -> str:
    from huggingface_hub import HfApi

    hub = HfApi()
    hub.create_repo(place, private=settings.private, exist_ok=True)
    if settings.revision is not None:
        hub.create_branch(place, branch=settings.revision, exist_ok=True)
    done = hub.upload_folder(
        repo_id=place, folder_path=folder, revision=settings.revision, commit_message=f"Model of the run {title}"
    )
    return f"hf://{place} (commit {done.oid})"


def _check_hub(place: str) -> None:
    from huggingface_hub import HfApi

    if not os.environ.get("HF_TOKEN"):
        raise PushRefusedError(f"hf://{place}: the Secret has no key HF_TOKEN")
    owner = place.partition("/")[0]
    me = HfApi().whoami()
    owners = {me.get("name"), *(one.get("name") for one in me.get("orgs") or ())}
    if owner not in owners:
        raise PushRefusedError(
            f"hf://{place}: the token is of {me.get('name')}, who can't write to {owner}; it can to "
            f"{', '.join(sorted(filter(None, owners)))}"
        )
    role = ((me.get("auth") or {}).get("accessToken") or {}).get("role")
    if role == "read":
        raise PushRefusedError(f"hf://{place}: the token can only read; make one that can write")


# --- buckets ---


def _store(url: str) -> tuple[Any, str]:
    import fsspec

    # gcsfs is the one library that takes no notice of HTTPS_PROXY unless it is told to.
    options = {"session_kwargs": {"trust_env": True}} if url.startswith("gs://") else {}
    found: tuple[Any, str] = fsspec.core.url_to_fs(url, **options)
    return found


def _to_store(settings: Push, place: str, folder: Path, title: str) -> str:
    """One file after the other, config.json last: by it loaders take the folder for a model."""
    files, path = _store(settings.to)
    for file in sorted(folder.rglob("*"), key=lambda file: (file.name == "config.json", file)):
        if file.is_file():
            files.put_file(str(file), f"{path.rstrip('/')}/{file.relative_to(folder).as_posix()}")
    return str(settings.to)


def _refusal(error: BaseException) -> str | None:
    """What an error says about keys and names, which another try doesn't change; None for any other."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in {400, 401, 403, 404} or isinstance(error, PermissionError | FileNotFoundError):
        return _one_line(error)
    if type(error).__name__ in {
        "NoCredentialsError",
        "HFValidationError",
        "LocalTokenNotFoundError",
        "ClientAuthenticationError",
    }:
        return _one_line(error)
    return None


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LENGTH]


def main(environ: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> int:
    """Pushes, or checks; the last line on stdout is for the caller."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        run, paths = read_run_config(environ), read_paths(environ)
        settings = run.spec.trainer.push
        if settings is None:
            raise PushRefusedError("the run has no spec.trainer.push")
        if CHECK in arguments:
            check(settings)
            said = "can be written"
        else:
            said = push(settings, model_folder(paths.checkpoints), title=f"{run.namespace}/{run.name}")
    except TrainerError as error:
        print(error, flush=True)
        return error.exit_code
    print(said, flush=True)
    return ExitCode.OK


if __name__ == "__main__":
    code = main(arguments=sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a library's thread that hangs would keep it
