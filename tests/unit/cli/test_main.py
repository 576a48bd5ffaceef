"""The command against an API server that has its moments."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gymtrain_cli.main import _as_kubectl, _complete_run, app, main

ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

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
def patches() -> list[str]:
    """What the API server was asked to change."""
    return []


@pytest.fixture
def paths() -> list[str]:
    """What the API server was asked for."""
    return []


@pytest.fixture
def answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patches: list[str], paths: list[str]
) -> Iterator[list[Answer]]:
    """What the API server answers, in this order; the last one for ever."""
    left: list[Answer] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            patches.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.do_GET()

        def do_GET(self) -> None:
            paths.append(self.path)
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
    monkeypatch.setattr("gymtrain_cli.watch.follow", interrupted)
    assert main(["watch", "r"]) == 130


@pytest.mark.parametrize("one", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_it_as_ctrl_c_does_but_not_under_nohup(
    answers: list[Answer], monkeypatch: pytest.MonkeyPatch, one: signal.Signals
) -> None:
    def told_to_end(*_: Any) -> bool:
        os.kill(os.getpid(), one)
        time.sleep(10)
        return True

    answers.append(_run(TRAINING))
    monkeypatch.setattr("gymtrain_cli.watch.follow", told_to_end)
    monkeypatch.setattr("time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 1)))
    before = signal.signal(one, signal.SIG_DFL)
    try:
        assert main(["watch", "r"]) == 130
        signal.signal(one, signal.SIG_IGN)
        assert main(["watch", "r"]) == 0
    finally:
        signal.signal(one, before)


def click_command() -> Any:
    """The whole command."""
    return typer.main.get_command(app)


def _suspended(value: bool) -> Answer:
    return 200, json.dumps(
        {"metadata": {"name": "r"}, "spec": {"suspend": value, "trainer": {"checkpoint": {"size": "1"}}}}
    )


@pytest.mark.parametrize(("command", "before"), [("suspend", False), ("resume", True)])
def test_a_run_is_suspended_and_resumed(
    answers: list[Answer], patches: list[str], capsys: pytest.CaptureFixture[str], command: str, before: bool
) -> None:
    answers.append(_suspended(before))
    assert main([command, "r"]) == 0
    assert [json.loads(patch) for patch in patches] == [{"spec": {"suspend": not before}}]
    assert capsys.readouterr().out == f"r is {command}{'ed' if command == 'suspend' else 'd'}\n"


@pytest.mark.parametrize(("command", "before"), [("suspend", True), ("resume", False)])
def test_a_run_that_is_so_already_is_left_alone(
    answers: list[Answer], patches: list[str], capsys: pytest.CaptureFixture[str], command: str, before: bool
) -> None:
    answers.append(_suspended(before))
    assert main([command, "r"]) == 0
    assert patches == []
    assert "already" in capsys.readouterr().out


def test_without_checkpoints_suspending_says_what_it_costs(
    answers: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    answers.append((200, json.dumps({"metadata": {"name": "r"}, "spec": {}})))
    assert main(["suspend", "r"]) == 0
    assert "will begin at step 0 again" in capsys.readouterr().err


def test_a_misspelt_run_is_answered_with_names_like_it(
    answers: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    answers += [_error(404), (200, json.dumps({"items": [{"metadata": {"name": n}} for n in ("quickstart", "x")]}))]
    assert main(["curve", "quikstart"]) == 2
    assert "Did you mean quickstart?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["logs", "r", "--part", "trainr"], "Did you mean trainer?"),
        (["logs", "r", "--since", "soon"], "such as 90s, 10m or 1h30m"),
        (["validate"], "either the name of a run, or a file"),
        (["wach"], "wach"),
    ],
)
def test_a_wrong_argument_is_refused_with_a_right_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["watch", "r", "-n", "lab"], ["-n", "lab", "watch", "r"]),
        (["-n", "lab", "watch", "r"], ["-n", "lab", "watch", "r"]),
        (
            ["logs", "r", "--namespace=lab", "-f", "--context", "c"],
            ["--namespace=lab", "--context", "c", "logs", "r", "-f"],
        ),
        (["watch", "--", "-n"], ["watch", "--", "-n"]),
        (["watch", "r", "-n"], ["-n"]),
    ],
)
def test_namespace_and_context_may_stand_behind_the_command(given: list[str], taken: list[str]) -> None:
    assert _as_kubectl(given) == taken


def test_a_namespace_behind_the_command_is_asked(answers: list[Answer], paths: list[str]) -> None:
    answers.append(_run(COMPLETE))
    assert main(["watch", "r", "-n", "lab"]) == 0
    assert paths == ["/apis/gymtrain.dev/v1alpha1/namespaces/lab/gymtrainingruns/r"]


def test_names_are_completed_for_the_shell(answers: list[Answer]) -> None:
    answers.append((200, json.dumps({"items": [{"metadata": {"name": name}} for name in ("quickstart", "other")]})))
    assert _complete_run(typer.Context(click_command()), "qu") == ["quickstart"]


def test_help_needs_no_kubernetes_client() -> None:
    code = "import sys; from gymtrain_cli.main import main; main(['--help']); print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False", "it takes a second to load"


POD = {
    "metadata": {"name": "r-trainer-1-0", "labels": {"gymtrain.dev/role": "trainer"}},
    "spec": {"containers": [{"name": "trainer"}]},
}
LOG = "2026-11-23T10:00:01Z begins\n2026-11-23T10:00:02Z step 1\n"


@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_logs_are_read_and_followed_to_the_end(
    answers: list[Answer], capsys: pytest.CaptureFixture[str], follow: list[str]
) -> None:
    listed = 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [POD]})
    answers += [_run(COMPLETE), *([_run(COMPLETE)] if follow else []), listed, (200, LOG), _run(COMPLETE), listed]
    assert main(["logs", "r", *follow]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[trainer] r-trainer-1-0: begins",
        "[trainer] r-trainer-1-0: step 1",
    ]


def test_a_log_that_is_refused_while_it_is_followed_is_an_error(
    answers: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    listed = 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [POD]})
    answers += [_run(TRAINING), _run(TRAINING), listed, _error(403)]
    assert main(["logs", "r", "-f"]) == 2
    assert "reading the log of pod r-trainer-1-0: HTTP 403" in capsys.readouterr().err
