"""Which sandboxes the next rows of the draw order will need. Pure.

A row says so as SWE-bench's rows do: `image_name`, or `instance_id` and `subset` by which NeMo Gym's SWE agents find
the image. Rows without them need no sandbox.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TASK_CHARACTERS = 63  # what agents keep of an instance's id


@dataclass(frozen=True)
class Upcoming:
    """One sandbox of a rollout to come."""

    image: str
    task: str


def of_row(row: Mapping[str, Any]) -> Upcoming | None:
    """The sandbox of each of the row's rollouts, None where it needs none."""
    instance = row.get("instance_id")
    image = row.get("image_name")
    if not isinstance(instance, str) or not instance:
        return None
    if not isinstance(image, str) or not image:
        image = swebench_image(instance, str(row.get("subset") or ""))
    return Upcoming(image, instance.lower()[:_TASK_CHARACTERS])


def swebench_image(instance: str, subset: str) -> str:
    """Where the images of SWE-bench's instances are: Verified has its own, other subsets are SWE-gym's."""
    if subset == "verified":
        name = f"docker.io/swebench/sweb.eval.x86_64.{instance.replace('__', '_1776_')}:latest"
    else:
        name = f"docker.io/xingyaoww/sweb.eval.x86_64.{instance.replace('__', '_s_')}:latest"
    return name.lower()
