"""Pods that restricted Pod Security admits, with nothing to call the API server with."""

from typing import Any

type Object = dict[str, Any]

_USER = 65532  # the one that most images know as nonroot


def restricted_spec(container: Object, **more: Any) -> Object:
    """A pod's spec with one container; `more` goes into it, over what is set here."""
    return {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "imagePullPolicy": "IfNotPresent",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                **container,
            }
        ],
        **more,
    }
