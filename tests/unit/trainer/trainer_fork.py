"""Processes that have imported the trainer's libraries when they start: forks of one that did, once.

The libraries take 11 s of CPU to import, and the tests of several ranks start some sixty processes.

`run` forks them; `python -m tests.unit.trainer.trainer_fork REQUESTS REPLIES`, with two file descriptors, is what it
forks them of. A request is a line of JSON, with the module, its arguments and each process's environment; the reply is
the list of their exit codes. Nothing there may have started a thread or a GPU: a fork has neither.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIBRARIES = (
    "gymtrain_trainer.trl.trainer",
    "peft",
    "tests.unit.trainer.trainer_agent",
    "tests.unit.trainer.trainer_samples",
    "tests.unit.trainer.trainer_vllm",
)
WITHOUT_THREADS = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}  # NumPy's and PyArrow's


class _Forks:
    """The process that is forked."""

    def __init__(self) -> None:
        asked, self._requests = os.pipe()
        self._replies, told = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(asked), str(told)],
            cwd=ROOT,
            env=os.environ | WITHOUT_THREADS | {"PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=(asked, told),
            start_new_session=True,
        )
        os.close(asked)
        os.close(told)
        atexit.register(self.end)

    def run(self, request: Mapping[str, Any], seconds: float) -> list[int]:
        """Raises TimeoutError, and EOFError where the process that is forked has ended."""
        os.write(self._requests, json.dumps(request).encode() + b"\n")
        if not select.select([self._replies], [], [], seconds)[0]:
            raise TimeoutError(f"{request['module']} didn't end within {seconds:g} s")
        reply = os.read(self._replies, 65536)
        if not reply:
            raise EOFError("the process that is forked has ended")
        codes: list[int] = json.loads(reply)
        return codes

    def end(self) -> None:
        """Ends it, and all that it forked; once: another process may have its number then."""
        atexit.unregister(self.end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@functools.cache
def _forks() -> _Forks:
    return _Forks()


def run(module: str, arguments: Sequence[str], environments: Sequence[Mapping[str, str]], seconds: float) -> list[int]:
    """Runs a process of a module in each environment, side by side, to their end; the exit codes.

    Raises:
        TimeoutError: they didn't end within so many seconds.
    """
    request = {"module": module, "arguments": list(arguments), "environments": [dict(one) for one in environments]}
    try:
        return _forks().run(request, seconds)
    except BaseException:  # the next test has another
        _forks().end()
        _forks.cache_clear()
        raise


def _become(module: str, arguments: list[str], environment: dict[str, str]) -> int:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _fork(module: str, arguments: list[str], environment: dict[str, str], ours: Sequence[int]) -> int:
    process = os.fork()
    if process:
        return process
    for file in ours:
        os.close(file)
    code = 1
    try:
        code = _become(module, arguments, environment)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Forks what it is asked to, until nobody asks."""
    requests, replies = int(sys.argv[1]), int(sys.argv[2])
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    for name in LIBRARIES:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork would have one of them"
    with os.fdopen(requests, closefd=False) as lines:
        for line in lines:
            asked = json.loads(line)
            processes = [
                _fork(asked["module"], asked["arguments"], one, (requests, replies)) for one in asked["environments"]
            ]
            codes = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in processes]
            os.write(replies, json.dumps(codes).encode())


if __name__ == "__main__":
    main()
