"""Running other programs: always with a deadline, always with an error that names the program and its log."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dev.report import DevError

DEFAULT_DEADLINE = 60.0


def run(
    argv: Sequence[str | Path],
    *,
    deadline: float = DEFAULT_DEADLINE,
    check: bool = True,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a short command and return its output."""
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            env=environment(env),
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError:
        raise DevError(
            f"{command[0]} is not there", fix="install it; `dev/run cluster-up` installs what it needs itself"
        ) from None
    except subprocess.TimeoutExpired:
        raise DevError(f"`{' '.join(command)}` did not end within {deadline:.0f} s") from None
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise DevError(f"`{' '.join(command)}` failed ({done.returncode}): {said}")
    return done


def run_logged(
    argv: Sequence[str | Path],
    *,
    log: Path,
    deadline: float,
    what: str,
    fix: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: Path = Path(os.devnull),
) -> None:
    """Run a long command with its output in a log file; on expiry its whole process group goes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, stdin.open("rb") as given:
        output.write(f"$ {' '.join(str(part) for part in argv)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            [str(part) for part in argv],
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(env),
            cwd=cwd,
            start_new_session=True,
        )
        try:
            code = process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise DevError(f"{what}: not done within {deadline:.0f} s", fix=fix, log=log) from None
        finally:
            if process.poll() is None:
                end_group(process.pid)
                process.wait()
    if code != 0:
        raise DevError(f"{what}: exit status {code}", fix=fix, log=log)


def end_group(leader: int) -> None:
    """Terminate a process group that we started, then kill what is left of it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(leader, number)
        except ProcessLookupError:
            return
        time.sleep(0.5)


def environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """The caller's environment, with the admin tools' folders on the PATH (a plain shell lacks them)."""
    env = dict(os.environ)
    env["PATH"] = env.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    env.update(extra or {})
    return env
