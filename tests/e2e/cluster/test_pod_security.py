from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kubectl import Kubectl, KubectlError


def test_restricted_pod_security_admits_a_careful_pod(kubectl: Kubectl, pod: Callable[..., dict[str, Any]]) -> None:
    kubectl.apply(pod("careful", "pass"))


@pytest.mark.parametrize(
    ("careless", "named"),
    [
        ({"hostNetwork": True}, "host namespaces"),
        ({"securityContext": {}}, "runAsNonRoot"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "hostPath"),
    ],
)
def test_restricted_pod_security_refuses_a_careless_pod(
    kubectl: Kubectl, pod: Callable[..., dict[str, Any]], careless: dict[str, Any], named: str
) -> None:
    with pytest.raises(KubectlError, match=rf"violates PodSecurity.*{named}"):
        kubectl.apply(pod("careless", "pass", **careless))
