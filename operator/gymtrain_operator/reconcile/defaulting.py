"""Which defaults a run is made with (decision 39).

before preflight has passed    those that cluster and namespace have now; others make another preflight pod
from then on                   those of status.defaults; none, where an earlier release let preflight pass
"""

from gymtrain_api.conditions import ConditionType
from gymtrain_api.defaults import AppliedDefaults, resolve
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_operator.manifests.context import Defaults, RunContext
from gymtrain_operator.reconcile.lifecycle import has_ended
from gymtrain_operator.reconcile.observation import Observation, Run


def keeps_defaults(run: Run) -> bool:
    """Whether the run goes on with the defaults of its status, so that nobody needs those of its namespace. One that
    ended may begin again, when its spec changes."""
    return run.status.is_true(ConditionType.PREFLIGHT_PASSED) and not has_ended(run.status)


def current_defaults(seen: Observation, defaults: Defaults) -> AppliedDefaults:
    """Returns what cluster and namespace have now."""
    levels = [defaults.cluster] + ([seen.namespace.defaults] if seen.namespace.defaults else [])
    return resolve(levels, seen.namespace.required_limits)


def applied_defaults(
    seen: Observation, before: GymTrainingRunStatus, defaults: Defaults, *, passed: bool
) -> AppliedDefaults:
    """Returns the defaults that the run is made with. `passed`: its preflight has passed before, and its verdict is
    stored. That of a run in a queue isn't: nothing is, but its Workload."""
    if passed or keeps_defaults(seen.run):
        return before.defaults or AppliedDefaults()
    return current_defaults(seen, defaults)


def new_context(seen: Observation, defaults: Defaults) -> RunContext:
    """Returns the run as preflight is made from it."""
    run = seen.run
    assert run.spec is not None
    applied = applied_defaults(seen, run.status, defaults, passed=False)
    return RunContext(run.name, run.namespace, run.uid, run.spec, defaults, applied=applied)


def objects_of_defaults(applied: AppliedDefaults) -> list[tuple[str, str, str]]:
    """Lists kind, name and field of the objects that defaults name, and that have to exist in the run's namespace."""
    bundle = applied.ca_bundle
    return [("ConfigMap", bundle.config_map, "status.defaults.caBundle.configMap")] if bundle else []


def shown(applied: AppliedDefaults) -> AppliedDefaults | None:
    """Returns what the status says; nothing where there are no defaults."""
    return applied if applied != AppliedDefaults() else None
