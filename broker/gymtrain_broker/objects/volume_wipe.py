"""What of a sandbox's pod outlives the task's container: what its daemon empties, and what nobody can."""

from typing import Any

from gymtrain_api.sandboxes import ENV_DAEMON_WIPE, ENV_DAEMON_WIPE_IPC

type Object = dict[str, Any]

# Mounts of the pod. The second shows what is in the IPC namespace, but for the objects of System V.
_SHARED = ("/dev/shm", "/dev/mqueue")  # noqa: S108  names


def variables(spec: Object, task: Object) -> list[Object]:
    """Of the daemon: what to empty at its start and at its end."""
    return [
        {"name": ENV_DAEMON_WIPE, "value": ":".join(_folders(spec, task))},
        {"name": ENV_DAEMON_WIPE_IPC, "value": "0" if spec.get("hostIPC") else "1"},
    ]


def all_emptied(spec: Object, task: Object) -> bool:
    """Whether nothing of a task is left once its container was started anew.

    Root can write /etc/hosts and its like, which are the pod's; the node's IPC namespace is not ours to empty.
    """
    contexts = (task.get("securityContext") or {}, spec.get("securityContext") or {})
    user = next((one["runAsUser"] for one in contexts if one.get("runAsUser") is not None), 0)
    return user != 0 and not spec.get("hostIPC")


def _folders(spec: Object, task: Object) -> list[str]:
    """Folders that the task can write and that a restart of its container leaves as they are."""
    kept = {one["name"] for one in spec.get("volumes") or [] if "emptyDir" in one}
    mounts = task.get("volumeMounts") or []
    own = [one["mountPath"] for one in mounts if one.get("name") in kept and not one.get("readOnly")]
    shared = () if spec.get("hostIPC") else _SHARED  # else they are the node's
    return [*own, *(one for one in shared if one not in own)]
