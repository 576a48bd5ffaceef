"""From what was seen to one outcome for each line of the contract. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import dropwhile, pairwise

from gymtrain_api.sampling import temperature_of
from gymtrain_api.trainer_contract import LINES, OPTIONAL
from gymtrain_api.weight_version import WeightVersion
from gymtrain_api.wiring import TrainerProgress
from gymtrain_conformance.record import Ended, Event, Look, Lost, Rollout, ServersUp, Stopped, Update
from gymtrain_conformance.trial import Trial

_RUN = "conformance"
_SETTLED_SECONDS = 3.0  # after which what a trainer says has to be what is
_PAUSED_SECONDS = 10.0  # an update that takes longer was forgotten: the stand-in loads nothing


class Verdict(StrEnum):
    """What is known of a line."""

    KEPT = "kept"
    BROKEN = "broken"
    LEFT_OUT = "left out"  # an optional line of which there is nothing
    NOT_TRIED = "not tried"  # the trial did not come to it, or the run has no such part


@dataclass(frozen=True)
class Outcome:
    """Of one line."""

    line: str
    verdict: Verdict
    why: str = ""


type Finding = Iterator[Verdict | str]
"""Of a check: a text for each way in which its line is broken, or a verdict other than kept."""


def outcomes(trial: Trial) -> list[Outcome]:
    """One outcome for each line, in the contract's order."""
    found = []
    for line in LINES:
        said = list(_CHECKS[line](trial))
        problems = [one for one in said if not isinstance(one, Verdict)]
        verdicts = [one for one in said if isinstance(one, Verdict)]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            found.append(Outcome(line, Verdict.BROKEN, problems[0] + more))
        else:
            found.append(Outcome(line, verdicts[0] if verdicts else Verdict.KEPT))
    return found


def conforms(found: Sequence[Outcome], trial: Trial) -> bool:
    """Whether no line is broken, and each was tried that has to be."""
    untried = {one.line for one in found if one.verdict == Verdict.NOT_TRIED} - OPTIONAL
    if not trial.syncs:
        untried -= _OF_SYNCS
    return not untried and all(one.verdict != Verdict.BROKEN for one in found)


def _ends_without_a_run(trial: Trial) -> Finding:
    if trial.without_run.killed:
        yield "it still ran after a minute"
    elif trial.without_run.code == 0:
        yield "it ended with exit code 0, which completes the run"


def _finds_the_servers(trial: Trial) -> Finding:
    events = _attempt(trial, 1)
    up = next((event.at for event in events if isinstance(event, ServersUp)), None)
    early = [event for event in events if isinstance(event, Ended) and (up is None or event.at < up)]
    if early:
        yield f"it ended with exit code {early[0].code} while no server was up yet"
    elif not _of(events, Rollout):
        ends = _of(events, Ended)
        yield "no POST /run came" + (f" before it ended with exit code {ends[0].code}" if ends else "")


def _syncs_before_rollouts(trial: Trial) -> Finding:
    if not trial.syncs:
        yield Verdict.NOT_TRIED
        return
    for number, events in trial.record.attempts():
        first = next((event for event in events if isinstance(event, Rollout)), None)
        synced = [event for event in _of(events, Update) if first and event.at < first.at and _is_of(event, number)]
        if first is not None and not synced:
            yield f"attempt {number}: the first POST /run came while vLLM held {first.label!r}"


def _labels_versions(trial: Trial) -> Finding:
    if not trial.syncs:
        yield Verdict.NOT_TRIED
        return
    for number, events in trial.record.attempts():
        updates = [event for event in events if isinstance(event, Update | Lost)]
        newest, lost = 0, False
        for event in updates:
            if isinstance(event, Lost):
                lost = True
                continue
            if not event.label or event.problem:
                continue
            version = WeightVersion.parse(event.label)
            if version is None or not version.is_of(_RUN, number):
                yield f"attempt {number}: an update ended with label {event.label!r}, not {_RUN}:{number}:NUMBER"
                continue
            if event.asked != event.label:
                yield f"an update to {event.asked or 'no version'!r} ended with label {event.label!r}"
            again = lost and version.number == newest  # a repair sends what the pod had
            if version.number <= newest and not again:
                yield f"attempt {number}: {event.label} came after number {newest}"
            newest, lost = max(newest, version.number), False


def _sends_whole_weights(trial: Trial) -> Finding:
    if not trial.syncs:
        yield Verdict.NOT_TRIED
        return
    updates = trial.record.of(Update)
    if not updates:
        yield "no weights came"
    yield from (event.problem for event in updates if event.problem)


def _lets_vllm_go_on(trial: Trial) -> Finding:
    if not trial.syncs:
        yield Verdict.NOT_TRIED
        return
    for number, events in trial.record.attempts():
        since: float | None = None
        # What a stopped attempt left open, the next one ends with its first sync.
        for look in _of(list(dropwhile(_is_left_over, events)), Look):
            since = (since if since is not None else look.at) if _stuck(look) else None
            if since is not None and look.at - since > _PAUSED_SECONDS:
                yield f"attempt {number}: vLLM was paused, or an update open, for {look.at - since:.0f} s"
                break
        ended = _of(events, Ended)
        last = _of(events, Look)[-1:]
        if ended and not ended[0].killed and ended[0].code == 0 and last and _stuck(last[0]):
            yield f"attempt {number}: vLLM was left paused, or with an open update, at the end"


def _is_left_over(event: Event) -> bool:
    return not isinstance(event, Update) and not (isinstance(event, Look) and not _stuck(event))


def _stuck(look: Look) -> bool:
    return look.paused or look.updating


def _says_what_pods_hold(trial: Trial) -> Finding:
    if not trial.syncs:
        yield Verdict.NOT_TRIED
        return
    looks = [look for look in trial.record.of(Look) if look.held is not None or "/weights/held" in look.problem]
    if not looks:
        yield Verdict.LEFT_OUT
        return
    yield from (look.problem["/weights/held"] for look in looks if "/weights/held" in look.problem)
    for number, events in trial.record.attempts():
        labels: list[str] = []
        changed = 0.0
        for event in events:
            if isinstance(event, Update) and not event.problem:
                labels.append(event.label)
                changed = event.at
            elif isinstance(event, Lost):
                changed = event.at
            elif isinstance(event, Look) and event.held is not None:
                yield from _wrong_statement(number, event, labels, settled=event.at - changed > _SETTLED_SECONDS)


def _wrong_statement(number: int, look: Look, labels: list[str], *, settled: bool) -> Finding:
    assert look.held is not None
    version = look.held.version
    if version is not None and version not in labels:
        yield f"attempt {number}: it names version {version}, which no pod got in this attempt"
    elif labels and settled and version != labels[-1]:
        yield f"attempt {number}: it names version {version} {_SETTLED_SECONDS:.0f} s after vLLM got {labels[-1]}"
    elif labels and settled and look.label in labels and look.label not in look.held.pods.values():
        yield f"attempt {number}: no pod of {dict(look.held.pods)} is said to hold {look.label}"


def _repairs_pods(trial: Trial) -> Finding:
    events = _attempt(trial, 2)
    lost = next((event.at for event in events if isinstance(event, Lost)), None)
    before = [event.label for event in _of(events, Update) if lost and event.at < lost and not event.problem]
    if not trial.syncs or lost is None or not before:  # it had nothing to lose
        yield Verdict.NOT_TRIED
        return
    after = [event for event in _of(events, Update) if event.at > lost and not event.problem]
    if not after:
        yield "a pod that lost its weights never got any again"
    elif after[0].label != before[-1]:
        yield Verdict.LEFT_OUT


def _posts_rows(trial: Trial) -> Finding:
    yield from (event.problem for event in _rollouts(trial) if event.problem)


def _samples_as_the_run(trial: Trial) -> Finding:
    wanted = temperature_of(trial.spec.trainer.config)
    wrong = [event.temperature for event in _rollouts(trial) if event.temperature != wanted]
    if wrong:
        yield f"a row asked for temperature {wrong[0]}, the gateway samples at {wanted}"


def _keeps_the_limit(trial: Trial) -> Finding:
    most, limit = max((event.open for event in _rollouts(trial)), default=0), trial.spec.rollout.max_concurrent
    if most > limit:
        yield f"{most} rollouts were open at once, the limit is {limit}"


def _survives_failures(trial: Trial) -> Finding:
    events = _attempt(trial, 2)
    ended = _of(events, Ended)
    if not any(event.fails for event in _of(events, Rollout)) or not ended or ended[0].killed:
        yield Verdict.NOT_TRIED
    elif ended[0].code != 0:
        yield f"it ended with exit code {ended[0].code} after a POST /run that was answered with 500"


def _reports_progress(trial: Trial) -> Finding:
    looks = [look for look in trial.record.of(Look) if look.progress is not None or "/progress" in look.problem]
    if not looks:
        yield Verdict.LEFT_OUT
        return
    yield from (look.problem["/progress"] for look in looks if "/progress" in look.problem)
    for number, events in trial.record.attempts():
        steps = [look.progress.step for look in _of(events, Look) if look.progress is not None]
        yield from (f"attempt {number}: step {old}, then {new}" for old, new in pairwise(steps) if new < old)
        for look in _of(events, Look):
            most = look.progress.max_steps if look.progress is not None else None
            if look.progress is not None and most is not None and look.progress.step > most:
                yield f"attempt {number}: step {look.progress.step} of {most}"


def _leaves_inputs_alone(trial: Trial) -> Finding:
    before, after = trial.inputs_before, trial.inputs_after
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            what = "changed" if path in before and path in after else "made" if path in after else "removed"
            yield f"it {what} {path}; it may write below gymtrain/checkpoints and gymtrain/scratch"


def _stops_in_time(trial: Trial) -> Finding:
    events = _attempt(trial, 1)
    stopped, ended = _of(events, Stopped), _of(events, Ended)
    if not stopped:
        yield Verdict.NOT_TRIED
    elif ended[0].killed:
        yield f"it still ran {ended[0].at - stopped[0].at:.0f} s after SIGTERM"


def _resumes(trial: Trial) -> Finding:
    first = max((look.progress.step for look in _of(_attempt(trial, 1), Look) if look.progress is not None), default=0)
    if trial.spec.trainer.checkpoint is None or not first or not _of(_attempt(trial, 1), Stopped):
        yield Verdict.NOT_TRIED
        return
    reports = [look.progress for look in _of(_attempt(trial, 2), Look) if look.progress is not None]
    begun = [one.step for one in reports if one.phase in {"waiting_for_rollouts", "training", "complete"}]
    if not begun:
        yield Verdict.NOT_TRIED
    elif begun[0] == 0:
        yield Verdict.LEFT_OUT


def _ends_well(trial: Trial) -> Finding:
    ended = _of(_attempt(trial, 2), Ended)
    if not ended:
        yield Verdict.NOT_TRIED
    elif ended[0].killed:
        yield "attempt 2 was killed: it did not come to its end in time"
    elif ended[0].code != 0:
        yield f"attempt 2 ended with exit code {ended[0].code}"


def _leaves_a_last_word(trial: Trial) -> Finding:
    ended = _of(_attempt(trial, 2), Ended)
    if not ended or ended[0].code != 0:
        yield Verdict.NOT_TRIED
        return
    text = ended[0].last_words
    if not text:
        yield Verdict.LEFT_OUT
        return
    if len(text.encode()) > 4096:
        yield f"it has {len(text.encode())} bytes, and the kubelet keeps 4096"
    try:
        phase = TrainerProgress.model_validate_json(text).phase
    except ValueError:
        yield Verdict.LEFT_OUT  # plain text
        return
    if phase != "complete":
        yield f"its phase is {phase}, after exit code 0"


def _attempt(trial: Trial, number: int) -> list[Event]:
    return next((events for attempt, events in trial.record.attempts() if attempt == number), [])


def _of[E: Event](events: Sequence[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def _rollouts(trial: Trial) -> list[Rollout]:
    return trial.record.of(Rollout)


def _is_of(event: Update, attempt: int) -> bool:
    version = WeightVersion.parse(event.label)
    return version is not None and version.is_of(_RUN, attempt) and not event.problem


_OF_SYNCS = frozenset({"syncs-before-rollouts", "labels-versions", "sends-whole-weights", "lets-vllm-go-on"})
_OF_SYNCS |= {"says-what-pods-hold", "repairs-pods"}
_CHECKS: dict[str, Callable[[Trial], Finding]] = {
    "ends-without-a-run": _ends_without_a_run,
    "finds-the-servers": _finds_the_servers,
    "syncs-before-rollouts": _syncs_before_rollouts,
    "labels-versions": _labels_versions,
    "sends-whole-weights": _sends_whole_weights,
    "lets-vllm-go-on": _lets_vllm_go_on,
    "says-what-pods-hold": _says_what_pods_hold,
    "repairs-pods": _repairs_pods,
    "posts-rows": _posts_rows,
    "samples-as-the-run": _samples_as_the_run,
    "keeps-the-limit": _keeps_the_limit,
    "survives-failures": _survives_failures,
    "reports-progress": _reports_progress,
    "leaves-inputs-alone": _leaves_inputs_alone,
    "stops-in-time": _stops_in_time,
    "resumes": _resumes,
    "ends-well": _ends_well,
    "leaves-a-last-word": _leaves_a_last_word,
}
