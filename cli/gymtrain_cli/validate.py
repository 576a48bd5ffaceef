"""`gymtrain validate`: what preflight says of a run, without a GPU and without the run.

The API server's own checks come first (the types, the CRD's rules, admission). Then a copy under another name, with the
annotation that keeps the operator from going on after preflight, which is deleted in any case.
"""

import copy
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType
from gymtrain_api.defaults import AppliedDefaults, with_defaults
from gymtrain_api.merge import merge
from gymtrain_api.runs import parse_spec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_client.cluster import Cluster, Object, patiently
from gymtrain_client.errors import ClientError, RunNotFoundError, UnavailableError, WatchDeadlineError

_POLL_SECONDS = 1.0
_NAME_LENGTH = 30


@dataclass(frozen=True)
class Verdict:
    """What preflight says, and the defaults of cluster and namespace that the run would be made with."""

    passed: bool
    message: str
    defaults: AppliedDefaults = field(default_factory=AppliedDefaults)


def effective(run: Object, defaults: AppliedDefaults) -> Object:
    """Returns what a run becomes with the defaults of cluster and namespace: its spec as filled in, what its pods get
    by role, with the run's own templates over it, and the defaults themselves.

    Raises:
        InvalidRunError: the spec doesn't fit the types.
    """
    spec = with_defaults(parse_spec(run["spec"]), defaults)
    templates: dict[str, Any] = {
        "preflight": None,
        "gym": spec.gym.template,
        "gateway": spec.gateway.template,
        "inference": spec.inference.template,
        "trainer": spec.trainer.template,
    }
    if spec.sandboxes is not None:
        templates |= {"broker": None, "sandbox": spec.sandboxes.template}
    pods = {role: merge(defaults.pod_template(role), template or {}) for role, template in templates.items()}
    return {
        "metadata": {"name": run["metadata"].get("name", "")},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True),
        "pods": {role: template.get("spec", {}) for role, template in pods.items()},
        "defaults": defaults.model_dump(mode="json", by_alias=True),
    }


def copy_of(run: Object) -> Object:
    """The run under another name, of which nothing stays."""
    spec = copy.deepcopy(run["spec"])
    spec.pop("suspend", None)
    checkpoint = (spec.get("trainer") or {}).get("checkpoint") or {}
    if checkpoint.get("size"):
        checkpoint["retain"] = "Delete"
    name = f"{run['metadata']['name'][:_NAME_LENGTH].rstrip('-')}-check-{secrets.token_hex(2)}"
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "metadata": {"name": name, "annotations": {labels.PREFLIGHT_ONLY: "true"}},
        "spec": spec,
    }


def validate(
    cluster: Cluster, run: Object, deadline_seconds: float, say: Callable[[str], None] = lambda text: None
) -> Verdict:
    """Lets the cluster check a run.

    Args:
        cluster: where it would run.
        run: as in its YAML.
        deadline_seconds: of preflight.
        say: called with what goes on.

    Raises:
        RefusedError: the API server refuses it, and says which field is wrong.
        WatchDeadlineError: preflight has not ended.
        ClientError: the API server doesn't answer.
    """
    trial = copy_of(run)
    cluster.create_run(trial, dry_run=True)
    say("the API server takes it; preflight begins")
    name = trial["metadata"]["name"]
    try:
        cluster.create_run(trial)
        return _verdict(cluster, name, deadline_seconds, say)
    finally:
        _remove(cluster, name, say)


def _remove(cluster: Cluster, name: str, say: Callable[[str], None]) -> None:
    try:
        patiently(lambda: cluster.delete_run(name))
    except RunNotFoundError:
        return
    except ClientError as error:  # what the check came to is said nevertheless
        say(f"the check's run may be left over, `kubectl delete gtr {name}` removes it: {error}")


def _verdict(cluster: Cluster, name: str, deadline_seconds: float, say: Callable[[str], None]) -> Verdict:
    limit, said = time.monotonic() + deadline_seconds, ""
    while True:
        try:
            status = GymTrainingRunStatus.model_validate(cluster.run(name).get("status") or {})
        except UnavailableError:
            if time.monotonic() > limit:
                raise
            time.sleep(_POLL_SECONDS)
            continue
        for kind in (ConditionType.FAILED, ConditionType.PREFLIGHT_PASSED):
            found = status.condition(kind)
            if found is not None and (found.status == "True" or (found.status == "False" and kind != "Failed")):
                return Verdict(
                    kind != ConditionType.FAILED and found.status == "True",
                    found.message,
                    status.defaults or AppliedDefaults(),
                )
        waits = status.condition(ConditionType.PROGRESSING)
        now = waits.message if waits else "waiting for the operator"
        if now != said:
            say(now)
            said = now
        if time.monotonic() > limit:
            raise WatchDeadlineError(f"preflight did not end within {deadline_seconds:g} s. Last seen: {said}")
        time.sleep(_POLL_SECONDS)
