"""Checks the shape of the pod templates in a spec, as far as merging needs it.

The API server checks the contents of the fields. But a list that was written as a mapping (without `-`) can't be merged
with the operator's template, so the API server would never see it; and a `$patch` that merging doesn't know means
nothing to it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gymtrain_api.merge import DELETE, DIRECTIVE, MERGE_KEYS
from gymtrain_api.spec import GymTrainingRunSpec

_MAPPINGS = ("labels", "annotations")
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_LISTS = (
    *_CONTAINERS,
    "volumes",
    "imagePullSecrets",
    "hostAliases",
    "topologySpreadConstraints",
    "resourceClaims",
)
_LISTS_OF_CONTAINERS = ("env", "envFrom", "ports", "volumeMounts", "volumeDevices")

_MAPPING = "must be a mapping"
_LIST = "must be a list, with `-` before each item"
_UNKNOWN = (
    f"only `{DELETE}` is known, in items that are matched by a name, such as those of containers, volumes and env. "
    "To replace a volume's or a variable's source, name the new one: the old one goes by itself"
)


def misshapen(spec: GymTrainingRunSpec) -> list[str]:
    """Messages about fields in the spec's templates that don't have the shape of a PodTemplateSpec."""
    blocks = {
        "gym": spec.gym,
        **{f"gym.servers.{name}": server for name, server in spec.gym.servers.items()},
        "gateway": spec.gateway,
        "inference": spec.inference,
        "trainer": spec.trainer,
        "sandboxes": spec.sandboxes,
    }
    return [
        mistake
        for name, block in blocks.items()
        if block is not None and block.template is not None
        for mistake in _in_template(f"spec.{name}.template", block.template)
    ]


def _in_template(path: str, template: Mapping[str, Any]) -> Iterator[str]:
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    if isinstance(metadata, Mapping):
        for key in _MAPPINGS:
            if metadata.get(key) is not None and not isinstance(metadata[key], Mapping):
                yield f"{path}.metadata.{key}: {_MAPPING}"
    else:
        yield f"{path}.metadata: {_MAPPING}"
    if isinstance(spec, Mapping):
        yield from _in_lists(f"{path}.spec", spec, _LISTS)
    else:
        yield f"{path}.spec: {_MAPPING}"
    yield from _directives(path, template, in_merged_list=False)


def _in_lists(path: str, block: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    """Messages about `keys` that aren't lists of mappings. Null is allowed; it removes what the operator sets."""
    for key in keys:
        items = block.get(key)
        if items is None:
            continue
        if not isinstance(items, list):
            yield f"{path}.{key}: {_LIST}"
            continue
        for number, item in enumerate(items):
            if not isinstance(item, Mapping):
                yield f"{path}.{key}[{number}]: {_MAPPING}"
            elif key in _CONTAINERS:
                yield from _in_lists(f"{path}.{key}[{number}]", item, _LISTS_OF_CONTAINERS)


def _directives(path: str, value: Any, *, in_merged_list: bool) -> Iterator[str]:
    """Messages about directives that merging doesn't know, and would pass on to the API server."""
    if not isinstance(value, Mapping):
        return
    if DIRECTIVE in value and not (in_merged_list and value[DIRECTIVE] == DELETE):
        yield f"{path}.{DIRECTIVE}: {_UNKNOWN}"
    for key, inner in value.items():
        if isinstance(inner, list):
            for number, item in enumerate(inner):
                yield from _directives(f"{path}.{key}[{number}]", item, in_merged_list=key in MERGE_KEYS)
        else:
            yield from _directives(f"{path}.{key}", inner, in_merged_list=False)
