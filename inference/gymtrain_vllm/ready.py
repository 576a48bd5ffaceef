"""Readiness probe of a vLLM pod, and the note that it reads: ready only while the pod holds weights of this run.

Run as a file with `python -I -S`: it imports next to nothing and takes some 30 ms. Exit code 0 means ready; else the
reason is on stdout, where Kubernetes shows it in the pod's events.

    healthy?  GET /health
    whose weights?  GET /weight_info; where the release has no such route or the engine is too busy to answer,
                    the note that the engine keeps in the scratch folder
    whose adapter?  GET /v1/models, where the run trains an adapter
    With weightSync.transport None healthy is enough.
"""

from __future__ import annotations

import json
import os
import socket
import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any

_RUN_CONFIG = "/etc/gymtrain/run/run.json"
_ROOT = "/gymtrain"
_NOTE = "scratch/held-weights"  # below the root
_PORT = 8000
THIS_POD = "127.0.0.1"
_SECONDS = 2.5  # for each of at most three questions


def get(path: str, port: int, timeout: float = _SECONDS, host: str = THIS_POD) -> tuple[int, bytes]:
    """Status and body of one GET. Raises OSError."""
    with socket.create_connection((host, port), timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(f"no HTTP answer to {path}")
    return int(words[1]), body


def note_file() -> str:
    """Where the note is that says which weights this pod holds. Nobody else can say it while vLLM's engine is busy."""
    return os.path.join(os.environ.get("GYMTRAIN_ROOT", _ROOT), _NOTE)


def write_note(version: str) -> None:
    """Writes the note. A pod without a scratch folder has none, and its probe asks vLLM alone."""
    note = note_file()
    if os.path.isdir(os.path.dirname(note)):
        fresh = f"{note}.{os.getpid()}"
        with open(fresh, "w", encoding="utf-8") as text:
            text.write(version)
        os.replace(fresh, note)


def remove_note() -> None:
    """Removes the note: the scratch folder outlives a restart of the container, the weights don't."""
    try:  # noqa: SIM105 - contextlib takes longer to import than the rest
        os.unlink(note_file())
    except FileNotFoundError:
        pass


def held_version(port: int, note: str) -> str | None:
    """The version that this pod holds; None for the weights it started with."""
    try:
        status, body = get("/weight_info", port)
        if status == 200:
            return str(json.loads(body)["weight_version"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        with open(note, encoding="utf-8") as text:
            return text.read().strip()
    except OSError:
        return None


def adapter_of(run: str, port: int) -> str | None:
    """An adapter of the run that this pod holds; their names are version labels."""
    try:
        status, body = get("/v1/models", port)
        names = [str(model["id"]) for model in json.loads(body)["data"]] if status == 200 else []
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return next((name for name in names if name.startswith(f"{run}:")), None)


def reason_against(run: str, spec: dict[str, Any], port: int, note: str) -> str:
    """Why the pod of `run` isn't ready; empty if it is ready."""
    try:
        status, _ = get("/health", port)
    except OSError as error:
        return f"vLLM does not answer: {error}"
    if status != 200:
        return f"vLLM is not healthy: /health says {status}"
    if (spec.get("weightSync") or {}).get("transport") == "None":
        return ""
    version = held_version(port, note)
    if version in (None, "default") and (spec.get("model") or {}).get("lora") is not None:
        version = adapter_of(run, port)
    if version is None or version == "default":
        return "waiting for the trainer's first weights"
    if not version.startswith(f"{run}:"):
        return f"holds weights {version}, not of run {run}"
    return ""


def main() -> int:
    """Prints the reason, if any."""
    with open(os.environ.get("GYMTRAIN_RUN_CONFIG", _RUN_CONFIG), encoding="utf-8") as config:
        run = json.load(config)
    port = int(os.environ.get("GYMTRAIN_INFERENCE_PORT", _PORT))
    reason = reason_against(run["name"], run.get("spec") or {}, port, note_file())
    if reason:
        print(reason)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
