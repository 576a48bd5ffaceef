"""From pydantic types to structural schemas: each construct, and a refusal of those without an agreed form."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from gymtrain_api.crd.structural import structural_schema
from gymtrain_api.defaults import RunDefaults
from gymtrain_api.errors import SchemaError
from gymtrain_api.sources import MODEL_SOURCE_PATTERN
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import Time

type Free = dict[str, Any]


class Inner(BaseModel):
    """A block."""

    number: int = 1
    words: list[str] = Field(default_factory=list)


class Required(BaseModel):
    """A block with a required field."""

    name: str


class Recursive(BaseModel):
    """Contains itself."""

    child: "Recursive | None" = None


def _field(kind: Any, default: Any = ..., *, defaults: bool = True) -> dict[str, Any]:
    """Schema of a model's only field."""
    model = create_model("Model", field=(kind, default))
    schema: dict[str, Any] = structural_schema(model, defaults=defaults)["properties"]["field"]
    return schema


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9}),
        (Annotated[int, Field(le=2**40)], {"type": "integer", "format": "int64", "maximum": 2**40}),
        (Time, {"type": "string", "format": "date-time"}),
        (Annotated[str, Field(min_length=1, max_length=3)], {"type": "string", "minLength": 1, "maxLength": 3}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}}),
        (Free, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (list[Free], {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}),
        (
            Required,
            {
                "description": "A block with a required field.",
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}},
            },
        ),
    ],
)
def test_a_construct_has_a_structural_form(kind: Any, schema: dict[str, Any]) -> None:
    assert _field(kind) == schema


def test_an_optional_field_is_the_plain_field_and_not_required() -> None:
    model = create_model("Model", field=(Annotated[int, Field(ge=1)] | None, None))
    assert structural_schema(model, defaults=True) == {
        "type": "object",
        "properties": {"field": {"type": "integer", "format": "int64", "minimum": 1}},
    }


def test_a_pattern_becomes_a_rule_with_a_message() -> None:
    schema = _field(Annotated[str, Field(pattern=MODEL_SOURCE_PATTERN, max_length=9)])
    assert "pattern" not in schema
    (rule,) = schema["x-kubernetes-validations"]
    assert rule["rule"] == f"self.matches(r'{MODEL_SOURCE_PATTERN}')"
    assert rule["message"].startswith("must be hf://")


@pytest.mark.parametrize(
    ("kind", "default", "written"),
    [
        (int, 3, 3),
        (bool, False, False),
        (list[str], Field(default_factory=lambda: ["a"]), ["a"]),
        (Inner, Field(default_factory=Inner), {"number": 1}),
    ],
)
def test_a_default_that_says_something_is_written(kind: Any, default: Any, written: Any) -> None:
    assert _field(kind, default)["default"] == written


@pytest.mark.parametrize(
    ("kind", "default"),
    [(int | None, None), (list[str], Field(default_factory=list)), (Free, Field(default_factory=dict))],
)
def test_a_default_that_means_absent_is_not_written(kind: Any, default: Any) -> None:
    assert "default" not in _field(kind, default)


def test_a_status_has_no_defaults() -> None:
    assert "default" not in _field(int, 3, defaults=False)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (int | str, "a union has no structural form"),
        (Recursive, "contains itself"),
        (Any, "has no structural form"),
        (Literal[1, 2], "only enums of strings"),
        (Annotated[int, Field(gt=0)], "exclusiveMinimum"),
        (Annotated[int, Field(multiple_of=2)], "multipleOf"),
        (Annotated[str, Field(pattern="^a$", max_length=9)], "needs a message"),
        (Annotated[str, Field(pattern=MODEL_SOURCE_PATTERN)], "needs max_length"),
        (tuple[int, str], "type None has no structural form"),
        (set[str], "uniqueItems"),
    ],
)
def test_a_construct_without_an_agreed_form_is_refused(kind: Any, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        _field(kind)


def test_a_block_whose_default_differs_from_its_fields_defaults_is_refused() -> None:
    with pytest.raises(SchemaError, match="not what its fields default to"):
        _field(Inner, Field(default_factory=lambda: Inner(number=2)))


def test_the_error_names_the_field() -> None:
    bad = create_model("Bad", bad=(int | str, ...))
    outer = create_model("Outer", items=(list[bad], ...))
    with pytest.raises(SchemaError, match=r"Outer\.items\[\]\.bad: "):
        structural_schema(outer, defaults=True)


def _unbounded(schema: dict[str, Any], path: str) -> Iterator[str]:
    if schema["type"] == "array" and "maxItems" not in schema:
        yield path
    if "additionalProperties" in schema and "maxProperties" not in schema:
        yield path
    for name, child in schema.get("properties", {}).items():
        yield from _unbounded(child, f"{path}.{name}")
    for children in ("items", "additionalProperties"):
        if children in schema:
            yield from _unbounded(schema[children], f"{path}[]")


@pytest.mark.parametrize("kind", [GymTrainingRunSpec, RunDefaults])
def test_each_list_and_map_that_users_fill_has_a_largest_size(kind: type[BaseModel]) -> None:
    assert list(_unbounded(structural_schema(kind, defaults=False), kind.__name__)) == []
