"""Strategic merge of a partial PodTemplateSpec (a `template` of the spec) over a pod template.

The rules are those of `kubectl patch --type=strategic` for the fields that pods have:

- mappings merge key by key; null removes a key;
- the lists of `MERGE_KEYS` merge item by item, matched by the key named there: new items are added at
  the end, and an item with `$patch: delete` removes its match;
- in volumes and env, a matching item keeps only the keys that the patch names, because the sources of a
  volume exclude each other, and so do `value` and `valueFrom`;
- any other list (args, command, tolerations, ...) replaces the old one.
"""

from collections.abc import Mapping
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
_EXCLUSIVE = {"volumes", "env"}
DIRECTIVE, DELETE = "$patch", "delete"


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with `patch` merged over it. Neither is changed."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            old = result.get(key)
            result[key] = merge(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            result[key] = _merge_list(result.get(key) or [], value, MERGE_KEYS[key], exclusive=key in _EXCLUSIVE)
        else:
            result[key] = value
    return result


def _merge_list(base: list[Any], patch: list[Any], key: str, *, exclusive: bool) -> list[Any]:
    items = list(base)
    for change in patch:
        if not isinstance(change, Mapping):
            items.append(change)  # the API server reports the mistake
            continue
        at = next((n for n, item in enumerate(items) if item.get(key) == change.get(key)), None)
        if change.get(DIRECTIVE) == DELETE:
            if at is not None:
                del items[at]
        elif at is None:
            items.append(merge({}, change))
        else:
            old = {k: v for k, v in items[at].items() if k in change} if exclusive else items[at]
            items[at] = merge(old, change)
    return items
