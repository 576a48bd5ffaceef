"""The conformance test: the minimal trainer passes it, and a variant that breaks one line is told which."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.trainer_contract import LINES, OPTIONAL
from gymtrain_conformance.checks import Outcome, Verdict, conforms, outcomes
from gymtrain_conformance.main import main, read_spec, table
from gymtrain_conformance.record import Ended, Look, Lost, Record, Rollout, Started, Update
from gymtrain_conformance.stand_ins import Agents, Answer, Ask
from gymtrain_conformance.trainer import expanded
from gymtrain_conformance.trial import Trial, TrialError, run_trial

MINIMAL = Path(__file__).parents[3] / "examples" / "trainers" / "minimal"
_AT_ONCE = 8  # they mostly wait


@dataclass(frozen=True, eq=False)
class Variant:
    """The minimal trainer with a change, and the verdict that it has to get.

    Attributes:
        old, new: text of one of its files.
        trainer: fields of spec.trainer.
    """

    line: str
    old: str
    new: str
    verdict: Verdict = Verdict.BROKEN
    trainer: dict[str, Any] = field(default_factory=dict)
    seconds: float = 30.0


VARIANTS = (
    Variant(
        "ends-without-a-run",
        "pod = Pod.read()",
        "sys.argv = []\n    try:\n        pod = Pod.read()\n    except OSError:\n        return 0",
    ),
    Variant(
        "finds-the-servers",
        'if time.monotonic() > deadline:\n                    raise TimeoutError(f"agent',
        'if True:\n                    raise TimeoutError(f"agent',
        seconds=4,
    ),
    Variant("syncs-before-rollouts", "weights.send(files)\n    done = 0", "done = 0", seconds=8),
    Variant("labels-versions", "self._number += 1", "self._number = 1"),
    Variant("sends-whole-weights", "blake3(data)", "blake3(data[1:])", seconds=8),
    Variant("sends-whole-weights", 'lines.append({"parts": len(lines) - 1})', "pass", seconds=8),
    Variant("lets-vllm-go-on", 'self._control(f"{pod}/resume", {}, _CONTROL_SECONDS)', "pass", seconds=14),
    Variant("says-what-pods-hold", "self._current.label if self._current else None", '"conformance:1:99"'),
    Variant("says-what-pods-hold", 'case ["weights", "held"]:', 'case ["nothing", "held"]:', Verdict.LEFT_OUT),
    Variant(
        "repairs-pods",
        "while not self._pod.stopping.wait(_REPAIR_SECONDS):",
        "while False:",
        Verdict.LEFT_OUT,
        trainer={"config": {"rows_per_step": 1}},
        seconds=60,
    ),
    Variant("posts-rows", '{**row, "responses_create_params": asked}', '{"responses_create_params": asked}'),
    Variant("posts-rows", '(row.get("agent_ref") or {}).get("name") or dataset', "dataset"),
    Variant("samples-as-the-run", '"temperature": self._pod.temperature', '"temperature": 0.5'),
    Variant("keeps-the-limit", 'ThreadPoolExecutor(self._limits["maxConcurrent"])', "ThreadPoolExecutor(8)"),
    Variant("survives-failures", "self.failed += 1", "raise"),
    Variant("reports-progress", 'phase="training", step=step', 'phase="training", step=steps - step'),
    Variant("reports-progress", "json.dumps(pod.progress).encode()", 'b"{}"'),
    Variant("reports-progress", 'case ["progress"]:', 'case ["nothing"]:', Verdict.LEFT_OUT),
    Variant(
        "leaves-inputs-alone",
        "draft.rename(state)",
        '(pod.root / "data" / "mine").touch()\n        draft.rename(state)',
    ),
    Variant(
        "stops-in-time",
        "pod.stopping.set()",
        "pass",
        trainer={
            "config": {"steps": 400},
            "template": {"spec": {"terminationGracePeriodSeconds": 2}},
        },
        seconds=6,
    ),
    Variant("resumes", "if state.exists() else 0", "if False else 0", Verdict.LEFT_OUT),
    Variant("ends-well", "pod.say_last()\n    return 0", "pod.say_last()\n    return 3"),
    Variant("leaves-a-last-word", 'pod.report(phase="complete"', 'pod.report(phase="training"'),
    Variant("leaves-a-last-word", 'message="")\n    pod.say_last()', 'message="")', Verdict.LEFT_OUT),
)


def _spec(**trainer: Any) -> GymTrainingRunSpec:
    spec = read_spec(MINIMAL / "run.yaml").model_dump(by_alias=True)
    spec["rollout"]["maxConcurrent"] = 4
    spec["trainer"] |= trainer
    return GymTrainingRunSpec.model_validate(spec)


def _try(folder: Path, variant: Variant) -> Trial:
    shutil.copytree(MINIMAL, folder)
    for name in ("contract.py", "train.py"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(variant.old, variant.new, 1))
    return run_trial(_spec(**variant.trainer), [sys.executable, str(folder / "train.py")], seconds=variant.seconds)


class Trials:
    """The trial of each variant, made once; of the trainer as it is by None."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._pool = pool
        self._made: dict[Variant | None, Future[Trial]] = {}

    def begin(self, variant: Variant | None) -> Future[Trial]:
        if variant not in self._made:
            folder = self._folder / str(len(self._made))
            self._made[variant] = self._pool.submit(_try, folder, variant or Variant("", "", ""))
        return self._made[variant]

    def of(self, variant: Variant | None) -> Trial:
        return self.begin(variant).result()


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    """All are under way at once, but with several pytest processes, which share the tests out."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = Trials(tmp_path_factory.mktemp("variants"), pool)
        if "PYTEST_XDIST_WORKER" not in os.environ:
            for variant in (None, *VARIANTS):
                found.begin(variant)
        yield found


def _outcome(found: list[Outcome], line: str) -> Outcome:
    return next(one for one in found if one.line == line)


def test_the_minimal_trainer_keeps_every_line(trials: Trials) -> None:
    trial = trials.of(None)
    found = outcomes(trial)
    assert [one for one in found if one.verdict != Verdict.KEPT] == [], trial.log
    assert [one.line for one in found] == list(LINES)
    assert conforms(found, trial)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: f"{variant.line} {variant.verdict}")
def test_a_broken_line_is_named(variant: Variant, trials: Trials) -> None:
    trial = trials.of(variant)
    found = outcomes(trial)
    one = _outcome(found, variant.line)
    assert one.verdict == variant.verdict, f"{table(found)}\n{trial.log}"
    assert conforms(found, trial) is (variant.verdict != Verdict.BROKEN), table(found)
    assert bool(one.why) is (variant.verdict == Verdict.BROKEN)


def test_every_line_has_a_variant_that_lacks_it() -> None:
    assert {variant.line for variant in VARIANTS} == set(LINES)
    assert {variant.line for variant in VARIANTS if variant.verdict == Verdict.LEFT_OUT} == OPTIONAL


def test_every_variant_changes_the_trainer() -> None:
    texts = [(MINIMAL / name).read_text() for name in ("contract.py", "train.py")]
    assert [variant.line for variant in VARIANTS if sum(text.count(variant.old) for text in texts) != 1] == []


def test_a_pod_that_had_no_weights_to_lose_says_nothing_of_repairs(trials: Trials) -> None:
    """As where a rollout of the attempt before is read late."""
    record = Record()
    for event in (Started(1), Started(2), Rollout("", 1.0, "", 1), Lost(at=1.0), Update("conformance:2:1", "", at=2.0)):
        record.add(event)
    found = outcomes(replace(trials.of(None), record=record))
    assert _outcome(found, "repairs-pods").verdict == Verdict.NOT_TRIED


def test_a_request_that_is_read_late_is_not_the_next_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the stopped process may be gone before its last requests are read."""
    of = Agents.of

    def late(agents: Agents, name: str) -> Ask:
        ask = of(agents, name)

        def asked(method: str, path: str, body: dict[str, Any]) -> Answer:
            time.sleep(0.7)
            return ask(method, path, body)

        return asked

    monkeypatch.setattr(Agents, "of", late)
    trial = _try(tmp_path / "trainer", Variant("", "", ""))
    found = outcomes(trial)
    assert [one for one in found if one.verdict != Verdict.KEPT] == [], f"{table(found)}\n{trial.log}"


@pytest.mark.parametrize(
    ("own", "why"), [(False, []), (True, ["attempt 2: vLLM was paused, or an update open, for 20 s"])]
)
def test_a_pause_that_a_stopped_attempt_left_is_not_the_next_ones_until_its_first_sync(
    own: bool, why: list[str]
) -> None:
    """A large model, or a slow machine, loads for longer than an update may be open."""
    record = Record()
    record.add(Started(1, at=0))
    record.add(_look(paused=True, at=5))
    record.add(Ended(1, at=6))
    record.add(Started(2, at=6))
    record.add(_look(paused=not own, at=7))
    record.add(_look(paused=True, at=20))
    record.add(_look(paused=True, at=40))
    record.add(Update("conformance:2:1", "conformance:2:1", at=40))
    record.add(_look(paused=False, at=41))
    trial = Trial(_spec(), record, Ended(1), {}, {}, "")
    found = next(one for one in outcomes(trial) if one.line == "lets-vllm-go-on")
    assert [found.why] * (found.verdict == Verdict.BROKEN) == why


def _look(*, paused: bool, at: float) -> Look:
    return Look(None, None, {}, paused, False, "", at=at)


def test_a_trainer_that_sends_no_weights_is_not_asked_for_any() -> None:
    spec = _spec()
    without = spec.model_copy(update={"weight_sync": spec.weight_sync.model_copy(update={"transport": "None"})})
    trial = run_trial(without, [sys.executable, str(MINIMAL / "train.py")], seconds=30)
    found = outcomes(trial)
    assert conforms(found, trial), f"{table(found)}\n{trial.log}"
    assert {one.line for one in found if one.verdict == Verdict.NOT_TRIED} == {
        "syncs-before-rollouts",
        "labels-versions",
        "sends-whole-weights",
        "lets-vllm-go-on",
        "says-what-pods-hold",
        "repairs-pods",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec["trainer"].update(nodes=2), "one node"),
        (lambda spec: spec["rollout"].update(mode="Verify"), "rollout.mode"),
        (lambda spec: spec["weightSync"].update(transport="NCCL"), "HTTPFull or None"),
    ],
)
def test_a_run_that_cannot_be_played_is_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    spec = _spec().model_dump(by_alias=True)
    change(spec)
    with pytest.raises(TrialError, match=message):
        run_trial(GymTrainingRunSpec.model_validate(spec), ["true"], seconds=1)


def test_weights_are_not_tried_without_blake3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TrialError, match="blake3, which isn't installed"):
        run_trial(_spec(), ["true"], seconds=1)


def test_a_command_is_expanded_as_kubernetes_does() -> None:
    command = ["torchrun", "--nnodes=$(GYMTRAIN_NODES)", "$(NO_SUCH)", "$$(GYMTRAIN_NODES)", "$HOME"]
    assert expanded(command, {"GYMTRAIN_NODES": "2", "HOME": "/x"}) == [
        "torchrun",
        "--nnodes=2",
        "$(NO_SUCH)",
        "$(GYMTRAIN_NODES)",
        "$HOME",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "isn't YAML"),
        ("kind: ConfigMap", "has 0 GymTrainingRuns"),
        ("kind: GymTrainingRun\nspec: {}", "spec.model: Field required"),
    ],
)
def test_a_file_without_a_run_is_an_error_that_names_it(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert main([str(tmp_path / "run.yaml"), "--", "true"]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "run.yaml") in said
    assert message in said


def test_a_program_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(MINIMAL / "run.yaml"), "--", "/no/such/program"]) == 2
    assert "/no/such/program" in capsys.readouterr().err


def test_a_trainer_that_does_not_conform_shows_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "print('what it said last'); raise SystemExit(3)"]
    assert main([str(MINIMAL / "run.yaml"), "--seconds", "5", "--", *command]) == 1
    said = capsys.readouterr().out
    assert "what it said last" in said
    assert "BROKEN     finds-the-servers" in said
    assert said.endswith("the trainer does not conform\n")


def test_a_signal_stops_the_minimal_trainer_amid_a_wait(tmp_path: Path) -> None:
    """Where the handler itself sets the event, it waits for ever for the lock that the main thread holds then."""
    (tmp_path / "run.json").write_text("{}")
    code = (
        "import os, signal, time; from contract import Pod\n"
        "pod = Pod.read()\n"
        "with pod.stopping._cond:\n"  # as for a moment in each wait
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.1)\n"
        "print(pod.stopping.wait(20))"
    )
    known = {"GYMTRAIN_RUN_CONFIG": str(tmp_path / "run.json"), "GYMTRAIN_ROOT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=MINIMAL,
        env={**os.environ, **known},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() == "True", done.stderr
