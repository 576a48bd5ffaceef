import time
from pathlib import Path

import pytest

from dev.files import write
from dev.report import DevError, wait_until
from dev.shell import run, run_logged


def test_a_failure_shows_the_end_of_the_log_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DevError) as caught:
        run_logged(
            ["sh", "-c", "echo the reason; exit 3"], log=tmp_path / "log", deadline=10, what="making", fix="do so"
        )

    message = caught.value.render()
    assert "making: exit status 3" in message
    assert "the reason" in message
    assert "fix: do so" in message
    assert str(tmp_path / "log") in message


def test_a_deadline_ends_the_whole_process_group(tmp_path: Path) -> None:
    started = time.monotonic()
    child = "sleep 600 & echo $! > child; wait"

    with pytest.raises(DevError, match=r"not done within 0 s|not done within 1 s"):
        run_logged(["sh", "-c", child], log=tmp_path / "log", deadline=0.5, what="waiting", cwd=tmp_path)

    assert time.monotonic() - started < 10
    pid = (tmp_path / "child").read_text().strip()
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "zombie" in status.read_text()


def test_a_missing_program_is_told_by_name() -> None:
    with pytest.raises(DevError, match="no-such-program is not there"):
        run(["no-such-program"])


def test_waiting_ends_with_the_last_answer() -> None:
    with pytest.raises(DevError, match="last answer: still asleep"):
        wait_until("the sleeper", lambda: "still asleep", deadline=0.1)


def test_a_file_that_does_not_change_is_not_touched(tmp_path: Path) -> None:
    write(tmp_path / "file", "same")
    before = (tmp_path / "file").stat()

    write(tmp_path / "file", "same")
    after = (tmp_path / "file").stat()
    # Not the whole of stat(): a read may move the time of the last access.
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    write(tmp_path / "file", "other", mode=0o600)
    assert (tmp_path / "file").read_text() == "other"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 1
