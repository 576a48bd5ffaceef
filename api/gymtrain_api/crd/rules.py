"""Adds the rules of `validations` to a schema."""

import re
from collections.abc import Iterable
from typing import Any

from gymtrain_api.crd.structural import Schema
from gymtrain_api.errors import SchemaError
from gymtrain_api.validations import Rule


def add_rules(schema: Schema, rules: Iterable[Rule]) -> None:
    """Adds each rule to the object that it checks, in place.

    Raises:
        SchemaError: a rule is about a field that doesn't exist.
    """
    for rule in rules:
        entry: dict[str, Any] = {"rule": rule.rule, "message": rule.message, "reason": rule.reason}
        target = _at(schema, rule.at)
        if rule.field:
            _at(target, rule.field)  # the API server refuses a fieldPath that names nothing
            entry["fieldPath"] = f".{rule.field}"
        target.setdefault("x-kubernetes-validations", []).append(entry)


def _at(schema: Schema, path: str) -> Schema:
    """The node at a wire path such as `spec.data.train[]`."""
    node = schema
    for name, items in re.findall(r"([^.\[]+)(\[\])?", path):
        try:
            node = node["properties"][name]
            node = node["items"] if items else node
        except KeyError as error:
            raise SchemaError(f"a rule is about {path}, but there is no {name}") from error
    return node
