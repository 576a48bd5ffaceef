"""Converts pydantic's JSON schema to a structural OpenAPI v3 schema, as CustomResourceDefinitions need.

pydantic's schema is not structural: it has `$ref`, `anyOf` with null, `const`, titles, and
`additionalProperties: false`. This module rewrites the constructs that the types use and raises on
any other keyword, so that a person looks at a new construct before it reaches a cluster.

It decides the following:

- Optional fields are not required. `nullable` is never set: the API server drops an explicit
  null, which then means the same as leaving the field out.
- The CRD contains meaningful defaults: scalars, non-empty lists, and blocks with only optional
  fields (with their fields' defaults, because the API server runs CEL over a default before it
  fills it). So `kubectl get -o yaml` shows the settings in use, and a release with other defaults
  doesn't change existing runs. Empty lists and mappings are left out: absent means the same.
- Integers have the formats that Kubernetes' own types have: int32, or int64 where the largest value isn't in that range
  or isn't known.
- A `pattern` becomes a CEL rule with a message for people (`validations.PATTERN_MESSAGES`); the API
  server's own message for patterns shows the expression only.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from gymtrain_api.errors import SchemaError
from gymtrain_api.validations import PATTERN_MESSAGES

type Schema = dict[str, Any]

_COPIED = (
    "description",
    "type",
    "enum",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_INT32 = 2**31 - 1


class _WithFactoryDefaults(GenerateJsonSchema):
    """Includes `default_factory`, which pydantic leaves out because it may be costly. Here, factories are pure."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        """The default, made by its factory if there is one."""
        factory = schema.get("default_factory")
        if factory is not None and not schema.get("default_factory_takes_data"):
            return factory()  # type: ignore[call-arg]  # the flag says that it takes no argument
        return super().get_default_value(schema)


def structural_schema(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The structural schema of a pydantic model, by wire names.

    Args:
        model: the type.
        defaults: whether to write defaults; never for a status, which only its writer fills.

    Raises:
        SchemaError: the type uses a construct that this module doesn't know.
    """
    raw = model.model_json_schema(by_alias=True, schema_generator=_WithFactoryDefaults)
    definitions = raw.pop("$defs", {})
    return _Converter(definitions, defaults).convert(raw, model.__name__)


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def convert(self, schema: Schema, path: str, inside: tuple[str, ...] = ()) -> Schema:
        """Converts one node. `inside` holds the definitions being inlined, to catch recursion."""
        node, inside = self._inlined(schema, path, inside)
        node.pop("title", None)
        if node.get("type") not in _TYPES:
            raise SchemaError(
                f"{path}: type {node.get('type')!r} has no structural form; known are {', '.join(_TYPES)}"
            )
        out: Schema = {key: node.pop(key) for key in _COPIED if key in node}
        if "enum" in out and out["type"] != "string":
            raise SchemaError(f"{path}: only enums of strings are known")
        if out["type"] == "integer":
            out["format"] = "int32" if out.get("maximum", math.inf) <= _INT32 else "int64"
        self._add_children(node, out, path, inside)
        self._add_pattern(node, out, path)
        if "default" in node:
            self._add_default(node.pop("default"), out, path)
        if node:
            raise SchemaError(f"{path}: no structural form is agreed for {', '.join(sorted(node))}")
        return out

    def _inlined(self, schema: Schema, path: str, inside: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Resolves `$ref`, Optional and const. Outer keywords win over inner ones."""
        node = dict(schema)
        if "anyOf" in node:
            arms = [arm for arm in node.pop("anyOf") if arm != {"type": "null"}]
            if len(arms) != 1:
                raise SchemaError(
                    f"{path}: a union has no structural form; write one optional field per arm and a rule in "
                    "validations.py"
                )
            node = {**arms[0], **node}
        if "$ref" in node:
            name = node.pop("$ref").removeprefix("#/$defs/")
            if name in inside:
                raise SchemaError(f"{path}: {name} contains itself; structural schemas can't recurse")
            found = copy.deepcopy(self._definitions[name])  # YAML would write what two fields share as an anchor
            return self._inlined({**found, **node}, path, (*inside, name))
        if "const" in node:
            node["enum"] = [node.pop("const")]
        return node, inside

    def _add_children(self, node: Schema, out: Schema, path: str, inside: tuple[str, ...]) -> None:
        if out["type"] == "array":
            out["items"] = self.convert(node.pop("items", {}), f"{path}[]", inside)
            return
        if out["type"] != "object":
            return
        properties = node.pop("properties", None)
        additional = node.pop("additionalProperties", None)
        if properties is not None:
            if additional not in (None, False):
                raise SchemaError(f"{path}: an object has either fields or free keys, not both")
            out["properties"] = {
                name: self.convert(child, f"{path}.{name}", inside) for name, child in properties.items()
            }
        elif additional is True:
            out["x-kubernetes-preserve-unknown-fields"] = True
        elif isinstance(additional, dict):
            out["additionalProperties"] = self.convert(additional, f"{path}{{}}", inside)
        else:
            raise SchemaError(f"{path}: an object without fields")

    def _add_pattern(self, node: Schema, out: Schema, path: str) -> None:
        pattern = node.pop("pattern", None)
        if pattern is None:
            return
        if pattern not in PATTERN_MESSAGES:
            raise SchemaError(f"{path}: the pattern {pattern!r} needs a message in validations.PATTERN_MESSAGES")
        if "maxLength" not in out:
            raise SchemaError(f"{path}: a pattern needs max_length, which bounds the cost of matching it")
        message = PATTERN_MESSAGES[pattern]
        out["x-kubernetes-validations"] = [
            # The API server shows the value's type only, so the message quotes the value.
            {"rule": f"self.matches(r'{pattern}')", "message": message, "messageExpression": f"self + ' {message}'"}
        ]

    def _add_default(self, default: Any, out: Schema, path: str) -> None:
        default = _without_none(default)
        if not self._defaults or default is None or default in ([], {}):
            return
        if isinstance(default, Mapping):
            if out.get("required") or "properties" not in out:
                raise SchemaError(f"{path}: a block can only default to its own fields' defaults")
            written = {name: value for name, value in default.items() if value not in (None, [], {})}
            if written != _filled(out):
                raise SchemaError(f"{path}: the block's default {written} is not what its fields default to")
            out["default"] = written
        elif isinstance(default, str | int | float | list):
            out["default"] = default
        else:
            raise SchemaError(f"{path}: no form is agreed for the default {default!r}")


def _without_none(value: Any) -> Any:
    """`value` without the fields that are not set."""
    match value:
        case Mapping():
            return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
        case list():
            return [_without_none(item) for item in value]
        case _:
            return value


def _filled(schema: Schema) -> dict[str, Any]:
    """The object that the API server makes from `{}`."""
    fields: dict[str, Schema] = schema.get("properties", {})
    return {name: field["default"] for name, field in fields.items() if "default" in field}
