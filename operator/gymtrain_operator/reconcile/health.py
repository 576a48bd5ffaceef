"""The Healthy condition: what the trainer measures of its own samples and pace."""

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.wiring import TrainerProgress
from gymtrain_operator.reconcile.conditions import Claim, find, holds, lacks

# What may stand for a whole run, as an environment of several that never works: it must not hide what comes later.
_LAST = {Reason.ENVIRONMENT_FAILING, Reason.NO_LEDGER_ENTRY}
_MEASURES = {"waiting_for_rollouts", "training", "complete"}
_NOT_YET = {"starting", "waiting_for_servers"}


def claims(report: TrainerProgress | None, before: GymTrainingRunStatus) -> tuple[Claim, ...]:
    """False while an alarm stands; what the trainer said last where it says nothing now; none before a first step."""
    if report is not None and report.alarms:
        alarms = sorted(report.alarms, key=lambda alarm: alarm.reason in _LAST)  # the others in the order they came
        messages = "; ".join(alarm.message for alarm in alarms)
        return (lacks(ConditionType.HEALTHY, Reason(alarms[0].reason), messages),)
    if report is not None and report.phase in _MEASURES and (report.step > 0 or report.phase == "complete"):
        return (holds(ConditionType.HEALTHY, Reason.NO_ALARM),)
    old = find(before, ConditionType.HEALTHY)
    if old is None or (report is not None and report.phase in _NOT_YET):
        return ()
    return (Claim(ConditionType.HEALTHY, old.status, Reason(old.reason), old.message),)
