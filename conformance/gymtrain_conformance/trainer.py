"""The trainer's process, and what it says on its port while it runs."""

import http.client
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from gymtrain_api.wiring import TrainerProgress, WeightsHeld
from gymtrain_conformance.record import Ended, Look, Record, Stopped
from gymtrain_conformance.stand_ins import Vllm

_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 2.0
_VARIABLE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")


def expanded(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command with $(NAME) replaced as Kubernetes does it: an unknown name stays as it is, and $$ is a $."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else environment.get(found[2], found[0])

    return [_VARIABLE.sub(value, part) for part in command]


class Process:
    """One process of the trainer; use as a context manager, which ends it in any case."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """`log`: where its output is appended to."""
        self._output = log.open("ab")
        # The variables of a pod alone, not what this process was started with for a run of its own.
        own = {name: value for name, value in os.environ.items() if not name.startswith("GYMTRAIN_")}
        whole = {**own, **environment}
        self._process = subprocess.Popen(
            expanded(command, whole), env=whole, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._kill()
        self._output.close()

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def stop(self, record: Record) -> None:
        """Sends SIGTERM, as the kubelet does: to the container's first process."""
        record.add(Stopped())
        self._process.send_signal(signal.SIGTERM)

    def wait(self, record: Record, seconds: float, last_words: Path) -> Ended:
        """Until it ends, or is killed because it doesn't."""
        killed = False
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            killed, code = True, self._kill()
        text = last_words.read_text(errors="replace") if last_words.is_file() else ""
        end = Ended(code, killed, text)
        record.add(end)
        return end

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Until a condition holds, the process ends, or time is up; whether the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.ended or time.monotonic() > deadline:
                return condition()
            time.sleep(0.02)
        return True

    def _kill(self) -> int:
        os.killpg(self._process.pid, signal.SIGKILL)  # its own session: what it started goes too
        return self._process.wait()


class Observer:
    """Looks at the trainer's port all the time, as operator and gateway do."""

    def __init__(self, record: Record, port: int, vllm: Vllm) -> None:
        self._record = record
        self._port = port
        self._vllm = vllm
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            problem: dict[str, str] = {}
            progress = held = None
            if (body := self._get("/progress")) is not None:
                try:
                    progress = TrainerProgress.model_validate_json(body)
                except ValidationError as error:
                    problem["/progress"] = str(error)
            if (body := self._get("/weights/held")) is not None:
                try:
                    held = WeightsHeld.model_validate_json(body)
                except ValidationError as error:
                    problem["/weights/held"] = str(error)
            vllm = self._vllm
            self._record.add(Look(progress, held, problem, vllm.paused, vllm.updating, vllm.label))

    def _get(self, path: str) -> bytes | None:
        """The body of a 200; None for anything else."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return body if answer.status == 200 else None
