"""Pushing the final model: to what stands for the hub, and what goes wrong. tests/data_sources pushes to buckets."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.wiring import PUSH_PREFIX
from gymtrain_trainer.context import Context
from gymtrain_trainer.push import unprefixed
from gymtrain_trainer.pushing import Pushed, run_push
from tests.support.json_server import JsonHandler, serving
from tests.unit.trainer.test_trainer_entry import context


def environment(folder: Path, **keys: str) -> dict[str, str]:
    paths = {"GYMTRAIN_RUN_CONFIG": str(folder / "run.json"), "GYMTRAIN_ROOT": str(folder)}
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": ":".join(sys.path),
        **paths,
        **{PUSH_PREFIX + name: value for name, value in keys.items()},
    }


def made(folder: Path, to: str) -> Context:
    found = context(folder, trainer={"checkpoint": {"claimName": "ck"}, "push": {"to": to}})
    model = found.run_folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "README.md").write_text("---\ntags: [x]\n---\n")
    return found


def test_keys_have_their_names_in_the_push_alone() -> None:
    found = unprefixed({"HF_TOKEN": "read", f"{PUSH_PREFIX}HF_TOKEN": "write", "A": "b"})
    assert found == {"HF_TOKEN": "write", "A": "b"}


# --- the process ---


def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """`code` is run in place of push.py."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{code}\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))


def test_the_last_line_says_how_it_went(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "echo one; echo s3://b/m")
    assert run_push(seconds=10) == Pushed(True, "s3://b/m")
    stand_in(monkeypatch, tmp_path, "echo no key; exit 78")
    assert run_push(seconds=10) == Pushed(False, "no key", refused=True)
    stand_in(monkeypatch, tmp_path, "exit 3")
    assert run_push(seconds=10) == Pushed(False, "the process ended with exit code 3")


def test_an_upload_that_hangs_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "exec sleep 60")
    began = time.monotonic()
    assert run_push(seconds=1) == Pushed(False, "it took longer than 1 s")
    assert run_push(seconds=60, stop=lambda: True) == Pushed(False, "the pod was asked to end")
    assert time.monotonic() - began < 10


# --- the hub ---


class Hub:
    """What stands for the Hugging Face hub: takes small files in commits, of whoever has the token `write`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.made: dict[str, Any] = {}
        self.failures = 0  # answers 503 to so many commits


@pytest.fixture
def hub() -> Iterator[tuple[Hub, str]]:
    hub = Hub()

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != "Bearer write":
                self.answer(401, {"error": "Invalid credentials"})
            elif self.path.startswith("/api/whoami"):
                self.answer(200, {"name": "me", "orgs": [{"name": "lab"}], "auth": {"accessToken": {"role": "write"}}})
            else:
                self.answer(200, {"id": "lab/model", "sha": "0" * 40, "siblings": []})

        def do_POST(self) -> None:
            import base64

            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != "Bearer write":
                self.answer(401, {"error": "Invalid credentials"})
            elif self.path == "/api/repos/create":
                hub.made = json.loads(body)
                self.answer(200, {"url": f"http://127.0.0.1:{port}/lab/model", "name": "lab/model"})
            elif "/preupload/" in self.path:
                files = [
                    {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for one in json.loads(body)["files"]
                ]
                self.answer(200, {"files": files})
            elif "/commit/" in self.path:
                if hub.failures:
                    hub.failures -= 1
                    self.answer(503, {"error": "busy"})
                    return
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                self.answer(
                    200,
                    {
                        "commitOid": "c0ffee",
                        "commitUrl": f"http://127.0.0.1:{port}/lab/model/commit/c0ffee",
                        "success": True,
                    },
                )
            else:
                self.answer(200, {})

    with serving(Handler) as port:
        yield hub, f"http://127.0.0.1:{port}"


@pytest.mark.torch
def test_a_model_is_pushed_to_the_hub(tmp_path: Path, hub: tuple[Hub, str]) -> None:
    there, url = hub
    made(tmp_path, "hf://lab/model")
    environ = environment(tmp_path, HF_TOKEN="write", HF_ENDPOINT=url)
    assert run_push("--check", seconds=60, environ=environ) == Pushed(True, "can be written")
    pushed = run_push(seconds=60, environ=environ)
    assert pushed == Pushed(True, "hf://lab/model (commit c0ffee)")
    assert there.files.keys() == {"config.json", "model.safetensors", "README.md"}
    assert there.files["model.safetensors"] == b"weights"
    assert there.made.get("private") is True or there.made.get("visibility") == "private"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("to", "keys", "says"),
    [
        ("hf://lab/model", {}, "no key HF_TOKEN"),
        ("hf://lab/model", {"HF_TOKEN": "wrong"}, "Invalid user token"),
        ("hf://others/model", {"HF_TOKEN": "write"}, "can't write to others; it can to lab, me"),
    ],
)
def test_a_wrong_token_or_name_is_found_in_preflight(
    tmp_path: Path, hub: tuple[Hub, str], to: str, keys: dict[str, str], says: str
) -> None:
    made(tmp_path, to)
    pushed = run_push("--check", seconds=60, environ=environment(tmp_path, HF_ENDPOINT=hub[1], **keys))
    assert pushed.refused
    assert says in pushed.said


@pytest.mark.torch
def test_a_hub_that_cannot_be_reached_is_no_refusal(tmp_path: Path) -> None:
    made(tmp_path, "hf://lab/model")
    environ = environment(tmp_path, HF_TOKEN="write", HF_ENDPOINT="http://127.0.0.1:9")
    pushed = run_push("--check", seconds=60, environ=environ)
    assert (pushed.done, pushed.refused) == (False, False)
    assert "hf://lab/model" in pushed.said
