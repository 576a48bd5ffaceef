"""A pod of the trainer-tests image that does one thing and ends."""

from typing import Any

from tests.support.images import image
from tests.support.kubectl import Kubectl, eventually
from tests.support.restricted import restricted_spec

_IMAGE = image("trainer-tests")
_CONTAINER = "main"


def run_to_its_end(
    kubectl: Kubectl, name: str, env: dict[str, str], seconds: float, *, volumes: list[Any] | None = None, **more: Any
) -> str:
    """The pod's log. It runs under restricted Pod Security; `more` is its container's, such as a command.

    Raises:
        AssertionError: it failed, or did not end in time.
    """
    container = {
        "name": _CONTAINER,
        "image": _IMAGE,
        "env": [{"name": variable, "value": value} for variable, value in {"HOME": "/tmp", **env}.items()],
        **more,
    }
    spec = restricted_spec(container, restartPolicy="Never", volumes=volumes or [])
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def phase() -> str:
        return str(kubectl.get("pod", name)["status"]["phase"])

    try:
        eventually(lambda: phase() in ("Succeeded", "Failed"), f"pod {name} ends", seconds)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{kubectl.logs(name, _CONTAINER)}") from None
    log = kubectl.logs(name, _CONTAINER)
    assert phase() == "Succeeded", log
    return log
