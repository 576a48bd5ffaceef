"""What the labels mean, for the reference page. `condition_table` has the meanings of conditions and reasons."""

from collections.abc import Mapping

from gymtrain_api import labels

# On objects and pods of a run; select on them.
LABELS: Mapping[str, str] = {
    labels.MANAGED_BY: f"`{labels.MANAGED_BY_VALUE}`: the object belongs to a run; `{labels.BROKER_VALUE}` on sandbox "
    "pods, which the run's broker makes and deletes.",
    labels.RUN: "Name of the run.",
    labels.ROLE: f"Part of the run: {', '.join(f'`{role}`' for role in labels.Role)}.",
    labels.SERVER: "Name of the Gym server.",
    labels.ATTEMPT: "Attempt that the trainer's pods belong to.",
    labels.SANDBOX_SHAPE: "Sandbox pods with the same value differ only in their names.",
}

# On a run, by whoever makes it.
ANNOTATIONS: Mapping[str, str] = {
    labels.PREFLIGHT_ONLY: "`true`: the operator makes the run's preflight, and nothing after it. `gymtrain validate` "
    "uses it.",
}
