"""Kubernetes' quantities, such as 250m and 4Gi."""

import re
from collections.abc import Mapping
from typing import Any

from gymtrain_api.sandboxes import SandboxResources
from gymtrain_api.spec.sandboxes import MaxResources

_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGT", start=1)
}
_QUANTITY = re.compile(r"([0-9.]+)([a-zA-Z]*)")

# What every sandbox has unless spec.sandboxes.resources says otherwise. Requests stand apart from limits: where they
# are left out the API server takes the limits, and 64 sandboxes of 20Gi disk each would fit on no node.
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "requests": {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "256Mi"},
    "limits": {"memory": "4Gi", "ephemeral-storage": "20Gi"},
}


def number(quantity: object) -> float:
    """The value, or infinity for an unknown form, which the API server checks."""
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None or found[2] not in _FACTORS:
        return float("inf")
    try:
        return float(found[1]) * _FACTORS[found[2]]
    except ValueError:
        return float("inf")


def asked_limits(asked: SandboxResources | None) -> dict[str, str]:
    """The limits that a request sets."""
    limits: dict[str, str] = {}
    if asked is None:
        return limits
    if asked.cpu is not None:
        limits["cpu"] = f"{max(1, round(asked.cpu * 1000))}m"
    if asked.memory_mib is not None:
        limits["memory"] = f"{asked.memory_mib}Mi"
    if asked.disk_gib is not None:
        limits["ephemeral-storage"] = f"{max(1, round(asked.disk_gib * 1024))}Mi"
    return limits


def requirements(spec: Mapping[str, Any] | None, asked: SandboxResources | None = None) -> dict[str, Any]:
    """ResourceRequirements: the defaults, overridden by the spec, then by the request's limits.

    A request is never above its limit: the API server would refuse the pod.
    """
    own = spec or {}
    limits = {**_DEFAULTS["limits"], **(own.get("limits") or {}), **asked_limits(asked)}
    requests = {**_DEFAULTS["requests"], **(own.get("requests") or {})}
    for name, value in requests.items():
        if name in limits and number(value) > number(limits[name]):
            requests[name] = limits[name]
    return {**own, "requests": requests, "limits": limits}


def ceilings(cluster: Mapping[str, str], spec: MaxResources, limits: Mapping[str, Any]) -> dict[str, str]:
    """The most that a request may set, by resource: the lower of the cluster's and the spec's, but not less than the
    limits that a sandbox has without asking."""
    own = {"cpu": spec.cpu, "memory": spec.memory, "ephemeral-storage": spec.ephemeral_storage}
    found: dict[str, str] = dict(cluster)
    for name, most in own.items():
        if most is not None and (name not in found or number(most) < number(found[name])):
            found[name] = str(most)
    return {
        name: str(limits[name]) if name in limits and number(limits[name]) > number(most) else most
        for name, most in found.items()
    }


def above(asked: SandboxResources | None, most: Mapping[str, str]) -> list[str]:
    """What a request sets beyond the ceilings, as `memory 64Mi (at most 32Mi)`."""
    wanted = asked_limits(asked).items()
    return [
        f"{name} {value} (at most {most[name]})"
        for name, value in wanted
        if name in most and number(value) > number(most[name])
    ]


def fits(asked: SandboxResources | None, limits: Mapping[str, Any]) -> bool:
    """Whether a sandbox with these limits has all that was asked for; what has no limit has no end."""
    wanted = asked_limits(asked).items()
    return all(name not in limits or number(value) <= number(limits[name]) for name, value in wanted)
