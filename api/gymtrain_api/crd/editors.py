"""JSON schema for editors: what yaml-language-server completes and underlines by.

The CRD's own schema, without what only Kubernetes reads, and closed: a misspelt field is an error in the editor, as the
API server drops it, or refuses it, without a word of where.
"""

import json
from collections.abc import Mapping
from typing import Any

from gymtrain_api import labels
from gymtrain_api.crd.definition import run_schema

FILE_NAME = "gymtrainingrun.schema.json"


def editor_schema() -> str:
    """The text of the file."""
    schema = _closed(run_schema())
    # Kubernetes' own fields: the CRD leaves them to the API server.
    schema["properties"] |= {
        "apiVersion": {"const": labels.API_VERSION},
        "kind": {"const": labels.KIND},
        "metadata": {"type": "object", "description": "Kubernetes' ObjectMeta: name, namespace, labels, annotations."},
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": labels.KIND}
    return json.dumps(head | schema, indent=1, ensure_ascii=False) + "\n"


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(one) for one in node]
    if not isinstance(node, Mapping):
        return node
    open_ended = node.get("x-kubernetes-preserve-unknown-fields")
    made = {key: value for key, value in node.items() if not str(key).startswith("x-kubernetes-")}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), Mapping):
            made[key] = _closed(made[key])
    if isinstance(made.get("properties"), Mapping):
        made["properties"] = {name: _closed(value) for name, value in made["properties"].items()}
        if not open_ended:
            made.setdefault("additionalProperties", False)
    if made.pop("nullable", False) and "type" in made:  # OpenAPI's word
        made["type"] = [made["type"], "null"]
    if node.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    return made
