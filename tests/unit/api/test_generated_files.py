"""The committed CRD and reference are what the types say."""

from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.crd.__main__ import differences, generated_files, main
from gymtrain_api.crd.definition import FILE_NAME, custom_resource_definition
from gymtrain_api.crd.reference import reference_page
from gymtrain_api.crd.rules import add_rules
from gymtrain_api.errors import SchemaError
from gymtrain_api.validations import Rule

ROOT = Path(__file__).parents[3]


def test_committed_files_are_current() -> None:
    assert "\n".join(differences(ROOT, generated_files())) == ""


def test_types_that_fields_share_are_written_out() -> None:
    assert [line for line in generated_files()[f"crds/{FILE_NAME}"].splitlines() if "&id" in line] == []


def test_check_passes_on_what_was_just_written(tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--root", str(tmp_path), "--check"]) == 0


def test_check_shows_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--root", str(tmp_path)])
    crd = tmp_path / "crds" / "gymtrain.dev_gymtrainingruns.yaml"
    crd.write_text(crd.read_text().replace("- gtr", "- gym"))
    assert main(["--root", str(tmp_path), "--check"]) == 1
    shown = capsys.readouterr()
    assert "-    - gym\n+    - gtr\n" in shown.out
    assert "python -m gymtrain_api.crd" in shown.err


def test_check_writes_nothing(tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path), "--check"]) == 1
    assert list(tmp_path.iterdir()) == []


def _field(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.removeprefix(".").split("."):
        schema = schema["properties"][name]
    return schema


def test_scale_reads_and_writes_fields_that_the_schema_has() -> None:
    (version,) = custom_resource_definition()["spec"]["versions"]
    schema, subresources = version["schema"]["openAPIV3Schema"], version["subresources"]
    assert set(subresources) == {"status", "scale"}
    types = {key: _field(schema, path)["type"] for key, path in subresources["scale"].items()}
    assert types == {"specReplicasPath": "integer", "statusReplicasPath": "integer", "labelSelectorPath": "string"}


def test_every_field_is_described() -> None:
    table = [line for line in reference_page().splitlines() if line.startswith(("| `spec.", "| `status."))]
    assert table
    assert [line for line in table if line.endswith("|  |")] == []


def test_a_rule_about_a_field_that_is_not_there_is_refused() -> None:
    schema = {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object"}}}}
    with pytest.raises(SchemaError, match="there is no other"):
        add_rules(schema, [Rule(at="list[].other", rule="true", message="m")])


def test_a_rule_is_put_on_each_item_of_a_list() -> None:
    items: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema: dict[str, Any] = {"type": "object", "properties": {"list": {"type": "array", "items": items}}}
    add_rules(schema, [Rule(at="list[]", rule="has(self.a)", message="m", field="a")])
    assert items["x-kubernetes-validations"] == [
        {"rule": "has(self.a)", "message": "m", "reason": "FieldValueInvalid", "fieldPath": ".a"}
    ]
