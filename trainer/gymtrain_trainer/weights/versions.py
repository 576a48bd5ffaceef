"""Whether a rollout group may be trained on, by the weights that the vLLM pods held around it."""

from collections.abc import Mapping


def foreign_weights(
    before: Mapping[str, str | None], after: Mapping[str, str | None], run: str, attempt: int
) -> str | None:
    """Which pod held weights that are not this attempt's, and when; None if no pod that answered did.

    Args:
        before: version by pod when the group started; None where the pod did not answer.
        after: the same when it ended.
        run: name of the run.
        attempt: number of the attempt.
    """
    prefix = f"{run}:{attempt}:"
    for moment, versions in (("started", before), ("ended", after)):
        for pod, version in versions.items():
            if version is not None and not version.startswith(prefix):
                return f"{pod} held weights {version!r}, not {prefix}*, when the group {moment}"
    return None
