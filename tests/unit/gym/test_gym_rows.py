"""Rows of a dataset: which are refused, and with what words."""

import json
from typing import Any

import pytest

from gymtrain_api.rows import FAILURE_CLASS
from gymtrain_gym.datasets.rows import RowFacts, RowReader, responses_schema
from gymtrain_gym.errors import DatasetError

pytestmark = pytest.mark.gym

AGENTS = {"math_agent", "mail_agent"}


def read(row: Any, default: str | None = "math_agent") -> str:
    line = row if isinstance(row, bytes) else json.dumps(row).encode()
    return RowReader(AGENTS, default, responses_schema()).agent_of(line, 1)


def row(**fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "2 + 2 ="}, **fields}


def test_row_goes_to_its_own_agent() -> None:
    assert read(row(agent_ref={"type": "responses_api_agents", "name": "mail_agent"})) == "mail_agent"


def test_row_without_agent_goes_to_the_default() -> None:
    assert read(row()) == "math_agent"


def test_messages_tools_and_extra_fields_are_fine() -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert read({"responses_create_params": {"input": messages, "tools": [tool]}, "answer": 4}) == "math_agent"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{nope", "invalid JSON at column 2"),
        (b"[1]", "a row must be a JSON object"),
        (b'{"a": "M\xfcller"}', "isn't UTF-8: byte 0xfc at column 9. Convert the file"),
        (b'\xef\xbb\xbf{"a": 1}', "begins with a byte order mark"),
        ({"response_create_params": {}}, "the nearest is 'response_create_params' among the row's keys"),
        (
            row(agent_ref={"name": "mail_agnet"}),
            "names no agent of the Gym config, 'mail_agnet': the nearest is 'mail_",
        ),
        (row(agent_ref="mail_agent"), "agent_ref must be"),
        (row(agent_ref={"type": "resources_servers", "name": "x"}), "agent_ref.type must be responses_api_agents"),
        ({"responses_create_params": {}}, "responses_create_params: input: Field required"),
        ({"responses_create_params": {"input": "x", "n": 2}}, "responses_create_params: n: Extra inputs are not perm"),
        ({"responses_create_params": {"input": [{"role": "usr", "content": "x"}]}}, "input.0.role: Input should be"),
        ({"responses_create_params": {"input": "x", "temperature": "hot"}}, "temperature: Input should be a valid num"),
    ],
)
def test_unusable_row_says_why(line: Any, message: str) -> None:
    with pytest.raises(DatasetError) as error:
        read(line)
    assert message in str(error.value)


def test_row_that_could_go_to_several_agents_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"names no agent: .*there is mail_agent, math_agent"):
        read(row(), default=None)


def test_null_is_what_is_left_out_as_the_trainer_sends_no_nulls() -> None:
    tool = {"type": "function", "name": "f", "description": None, "parameters": {"default": None}, "strict": None}
    message = {"role": "user", "content": "u", "type": None}
    params = {"input": [message], "tools": [tool], "metadata": {"extra_body": None}, "parallel_tool_calls": None}
    assert read({"responses_create_params": params}) == "math_agent"


def test_null_where_something_is_needed_is_refused() -> None:
    with pytest.raises(DatasetError, match="input: Field required"):
        read({"responses_create_params": {"input": None}})


def with_parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": list(parts)}]}}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ],
)
def test_rows_with_more_than_text_are_refused_with_the_reason(part: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match=f"has a part of type {part['type']}: only text can be trained"):
        read(with_parts({"type": "input_text", "text": "What is this?"}, part))


def test_rows_whose_tools_give_images_are_refused() -> None:
    output = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "x"}]}
    with pytest.raises(DatasetError, match="input_image"):
        read({"responses_create_params": {"input": [output]}})


def test_text_in_parts_is_fine_and_counted() -> None:
    reader = RowReader(AGENTS, "math_agent", responses_schema())
    reader.agent_of(json.dumps(row()).encode(), 1)
    longest = with_parts({"type": "input_text", "text": "12345"}, {"type": "input_text", "text": "67890"})
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}
    longest["responses_create_params"]["tools"] = [tool]
    reader.agent_of(json.dumps(longest).encode(), 4)
    reader.agent_of(json.dumps(row()).encode(), 5)
    assert reader.facts == RowFacts(with_tools=1, first_with_tools=4, longest=10, longest_line=4)


def test_a_failure_is_marked_as_nemo_gyms_own_rollout_collection_reads_it() -> None:
    from nemo_gym.rollout_collection import NG_FAILURE_CLASS_KEY

    assert FAILURE_CLASS == NG_FAILURE_CLASS_KEY
