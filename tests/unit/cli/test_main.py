"""The command against an API server that has its moments."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_cli import main as command
from gymtrain_cli.main import main

TRAINING = {"state": "Training", "progress": {"step": 3, "maxSteps": 10}}
COMPLETE = {
    "state": "Complete",
    "conditions": [
        {
            "type": "Complete",
            "status": "True",
            "reason": "R",
            "message": "10 steps done",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}
RESET = (0, "")  # the connection ends without an answer

type Answer = tuple[int, str]


def _run(status: dict[str, Any]) -> Answer:
    return 200, json.dumps({"metadata": {"name": "r"}, "status": status})


def _error(code: int) -> Answer:
    return code, json.dumps({"kind": "Status", "status": "Failure", "message": "not now", "code": code})


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Answer]]:
    """What the API server answers, in this order; the last one for ever."""
    left: list[Answer] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = left.pop(0) if len(left) > 1 else left[0]
            if not code:
                self.close_connection = True
                return
            self.send_response(code)
            self.send_header("Content-Type", "application/json" if text.startswith("{") else "text/plain")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("gymtrain_cli.watch._POLL_SECONDS", 0.0)
    monkeypatch.setattr("gymtrain_cli.watch._AGAIN_SECONDS", 0.01)
    yield left
    server.shutdown()
    server.server_close()


def test_watching_goes_on_after_moments_in_which_the_server_does_not_answer(
    answers: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    answers += [_run(TRAINING), RESET, _error(503), (429, "Too many requests"), _run(TRAINING), _run(COMPLETE)]
    assert main(["watch", "r"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4, "one line for all of it, and the state once more when it is over"
    assert re.search(r"the API server hasn't answered since \d\d:\d\d:\d\d", lines[1])
    assert "step 3/10" in lines[2]
    assert "10 steps done" in lines[3]


def test_watching_a_server_that_does_not_come_back_ends_at_the_deadline(
    answers: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    answers += [_run(TRAINING), RESET]
    assert main(["watch", "r", "--timeout", "0.3"]) == 2
    assert re.search(r"did not end within 0 s.*API server hasn't answered.*step 3/10", capsys.readouterr().err)


def test_watching_ends_when_the_run_is_deleted(answers: list[Answer], capsys: pytest.CaptureFixture[str]) -> None:
    answers += [_run(TRAINING), _error(404)]
    assert main(["watch", "r"]) == 2
    assert "no GymTrainingRun 'r'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["watch", "r"], ["curve", "r"]])
@pytest.mark.parametrize(
    ("answer", "said"), [(RESET, "doesn't answer"), (_error(503), "HTTP 503"), ((500, "proxy"), "HTTP 500")]
)
def test_a_server_that_never_answered_is_an_error_with_the_next_step(
    answers: list[Answer], capsys: pytest.CaptureFixture[str], arguments: list[str], answer: Answer, said: str
) -> None:
    answers.append(answer)
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert said in shown
    assert "`kubectl version`" in shown


@pytest.mark.parametrize("answer", [_error(403), (401, "Unauthorized")])
def test_what_is_forbidden_is_not_tried_again(
    answers: list[Answer], capsys: pytest.CaptureFixture[str], answer: Answer
) -> None:
    answers += [_run(TRAINING), answer]
    assert main(["watch", "r"]) == 2
    assert "reading run r" in capsys.readouterr().err


def test_ctrl_c_ends_without_a_traceback(answers: list[Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    answers.append(_run(TRAINING))
    monkeypatch.setattr(command, "follow", interrupted)
    assert main(["watch", "r"]) == 130
