"""The report as one file: what it holds, how large it is, and that what a model says stays text."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from gymtrain_report.__main__ import main
from gymtrain_report.choice import choose
from gymtrain_report.errors import ReportError
from gymtrain_report.folder import RunFolder
from gymtrain_report.hops import HOPS
from gymtrain_report.page import file_of, room_for_rollouts
from tests.unit.report.report_folders import conversation, curves, made, rollout, with_tokens, write


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    told: dict[str, Any] = json.loads(found[1])
    return told


def page_of(folder: Path, max_bytes: int = 10 << 20) -> str:
    run = RunFolder(folder)
    return file_of(run, choose(run, room_for_rollouts(run, max_bytes)))


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_the_page_has_curves_evaluations_and_all_rollouts(tmp_path: Path, ending: str) -> None:
    told = data_of(page_of(made(tmp_path / "run", ending=ending)))
    assert [row["step"] for row in told["overview"]["steps"]] == [1, 2, 3, 4]
    assert told["overview"]["evaluations"][1]["reward_low"] == 0.4
    assert told["sample"] == "All 27 recorded rollouts."
    ends = {(end["outcome"], end["reason"], end["agent"]): end["count"] for end in told["overview"]["ends"]}
    assert ends == {
        ("trained", "", "adder"): 16,
        ("dropped", "equal_rewards", "booker"): 4,
        ("lost", "timeout", "adder"): 4,
        ("evaluated", "", "adder"): 3,
    }
    first = told["rollouts"][0]
    assert (first["step"], first["reward"], first["preview"]) == (1, 0.0, "It is 2.")
    assert first["conversation"]["input"][0]["content"] == "What is 2 + 0?"
    lost = next(one for one in told["rollouts"] if one["outcome"] == "lost")
    assert (lost["preview"], lost["conversation"]) == ("not within 30 s", {})


def test_where_rollouts_seconds_went_is_a_mean_by_step_and_by_agent(tmp_path: Path) -> None:
    told = data_of(page_of(made(tmp_path / "run", steps=2)))
    by_agent = {row["agent"]: row for row in told["overview"]["hops"]["agent"]}
    assert by_agent["adder"]["count"] == 8, "evaluated and lost ones are not among them"
    assert (by_agent["adder"]["vllm_s"], by_agent["booker"]["tools_s"]) == (0.75, 2.5)
    first, second = told["overview"]["hops"]["step"]
    assert (first["step"], first["count"], second["step"]) == (1, 5, 2)
    assert first["model_s"] == (4 * 1.0 + 4.0) / 5
    booked = next(one for one in told["rollouts"] if one["agent"] == "booker")
    assert [call["at"] for call in booked["calls"]] == [1.0, 5.5]


def test_records_of_an_earlier_release_say_nothing_of_it(tmp_path: Path) -> None:
    curves(tmp_path, 1)
    old = {name: value for name, value in rollout(1, 0, 0).items() if name not in (*HOPS, "calls")}
    write(tmp_path / "rollouts" / "step-00000001.parquet", [old])
    told = data_of(page_of(tmp_path))
    assert told["overview"]["hops"] == {"step": [], "agent": []}
    assert told["rollouts"][0]["calls"] == []


def test_what_a_model_says_stays_text(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script><!-- \u2028"
    curves(tmp_path, 1)
    write(tmp_path / "rollouts" / "step-00000001.jsonl", [rollout(1, 0, 0, conversation=conversation(bad, bad))])
    page = page_of(tmp_path)
    assert "alert(1)</script>" not in page
    assert data_of(page)["rollouts"][0]["conversation"]["input"][0]["content"] == bad


def test_a_number_that_json_lacks_is_null(tmp_path: Path) -> None:
    curves(tmp_path, 1)
    row = rollout(1, 0, 0, ratio=float("nan"), reward=float("inf"))
    write(tmp_path / "rollouts" / "step-00000001.parquet", [row])
    (one,) = data_of(page_of(tmp_path))["rollouts"]
    assert (one["ratio"], one["reward"]) == (None, None)


def test_the_name_of_a_run_stays_text(tmp_path: Path) -> None:
    run = RunFolder(made(tmp_path / "run"), "<b>&")
    page = file_of(run, choose(run, 1 << 20))
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(made(tmp_path / "run"))
    assert re.findall(r"(?:src|href)=", page) == []
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_a_file_stays_below_its_limit_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    curves(tmp_path, 4)
    for step in range(1, 5):
        rows = [rollout(step, n // 4, n % 4, conversation=conversation("?", "ä" * 9000)) for n in range(40)]
        write(tmp_path / "rollouts" / f"step-{step:08d}.parquet", rows)
    page = page_of(tmp_path, 1 << 20)
    assert len(page.encode()) < 1 << 20
    told = data_of(page)
    shown = [(one["step"], one["group"]) for one in told["rollouts"]]
    assert 12 <= len(shown) < 80, "the room is used"
    assert {shown.count(group) for group in shown} == {4}, "whole groups"
    assert {step for step, _ in shown} == {1, 2, 3, 4}, "of every step"
    assert told["sample"].startswith(f"{len(shown)} of the 160 recorded rollouts")
    assert sum(end["count"] for end in told["overview"]["ends"]) == 160, "counts are of all"


def test_a_text_of_many_pages_is_cut(tmp_path: Path) -> None:
    curves(tmp_path, 1)
    write(
        tmp_path / "rollouts" / "step-00000001.jsonl", [rollout(1, 0, 0, conversation=conversation("?", "x" * 50_000))]
    )
    (one,) = data_of(page_of(tmp_path))["rollouts"]
    said = one["conversation"]["output"][0]["content"][0]["text"]
    assert said.endswith("x [… 30,000 more characters in the records]")


def test_sampled_tokens_come_with_their_ratios(tmp_path: Path) -> None:
    folder = with_tokens(made(tmp_path / "run"), 1, ["It ", "is ", "2."], [1.0, 1.5004, 0.25])
    told = data_of(page_of(folder))["rollouts"]
    assert told[0]["sampled"] == {"texts": ["It ", "is ", "2."], "ratios": [1.0, 1.5, 0.25]}
    assert [one for one in told[1:] if "sampled" in one] == []


def test_a_run_without_recorded_rollouts_has_its_curves(tmp_path: Path) -> None:
    curves(tmp_path, 3)
    told = data_of(page_of(tmp_path))
    assert (len(told["overview"]["steps"]), told["rollouts"]) == (3, [])


def test_a_row_of_a_csv_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    curves(tmp_path, 2)
    with (tmp_path / "rewards.csv").open("a") as file:
        file.write("3,0.")
    assert [row["step"] for row in RunFolder(tmp_path).steps()] == [1, 2]


def test_a_folder_that_is_no_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="name the run's folder on its checkpoint volume"):
        RunFolder(tmp_path / "none")
    with pytest.raises(ReportError, match=r"neither rewards\.csv nor evaluations\.csv"):
        RunFolder(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "run")
    (tmp_path / "run" / "rollouts" / "step-00000003.parquet").write_bytes(b"PAR1")
    assert main(["write", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]) == 1
    assert "step-00000003.parquet can't be read" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["write", str(made(tmp_path / "run")), "-o", str(page), "--run", "mine"]) == 0
    assert "<title>mine · gymtrain</title>" in page.read_text()
    assert "All 27 recorded rollouts." in capsys.readouterr().err


def test_rollouts_are_printed_by_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(made(tmp_path / "run"))

    def printed(*options: str) -> list[dict[str, Any]]:
        assert main(["rollouts", folder, *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert len(printed()) == 27
    assert [one["step"] for one in printed("--outcome=dropped")] == [1, 2, 3, 4]
    assert [one["step"] for one in printed("--search=ROOMS taken", "--agent=booker", "--step=3")] == [3]
    assert len(printed("--search=rooms nowhere")) == 0
    assert len(printed("--limit=2")) == 2


@pytest.mark.parametrize("command", [["write", "-o", "-"], ["rollouts", "--search=nowhere"]])
def test_while_records_are_read_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    files = RunFolder.files

    def slow(folder: RunFolder) -> Any:
        time.sleep(0.3)
        return files(folder)

    monkeypatch.setattr(RunFolder, "files", slow)
    monkeypatch.setattr("gymtrain_report.__main__._SIGN_SECONDS", 0.05)
    assert main([*command, str(made(tmp_path / "run"))]) == 0
    assert "reading the records: 0 s" in capsys.readouterr().err


def test_too_little_memory_is_an_error_of_one_line(tmp_path: Path) -> None:
    import subprocess
    import sys

    curves(tmp_path, 1)
    text = "x" * (4 << 20)
    rows = [rollout(1, 0, n, conversation=conversation("?", text)) for n in range(40)]
    write(tmp_path / "rollouts" / "step-00000001.jsonl", rows)
    command = [sys.executable, "-m", "gymtrain_report", "--memory-mib=96", "write", str(tmp_path), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": ":".join(sys.path)})
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: 96 MiB of memory are too little" in done.stderr
