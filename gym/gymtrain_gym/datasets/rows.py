"""One row of a dataset: is it a request that an agent's /run accepts, and which agent is it for?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gymtrain_api.rows import without_nulls
from gymtrain_gym.config.findings import nearest
from gymtrain_gym.errors import DatasetError

AGENT_TYPE = "responses_api_agents"
MAX_TEXT = 300  # characters of a library's error message

# Parts of a message that are no text; of the Responses API, and of Chat Completions.
_NO_TEXT = {"input_image", "image", "image_url", "input_audio", "input_video", "video_url", "input_file"}

type Schema = Callable[[Any], object]  # raises ValueError


@dataclass
class RowFacts:
    """What preflight wants to know of a dataset as a whole; lines count from 1, 0 is none."""

    with_tools: int = 0  # rows
    first_with_tools: int = 0  # line
    longest: int = 0  # characters of the longest prompt
    longest_line: int = 0


class RowReader:
    """Reads rows of one dataset.

    Args:
        agents: names of the agent servers.
        default_agent: agent of rows that name none.
        schema: check of `responses_create_params`; None trusts them.
    """

    def __init__(self, agents: set[str], default_agent: str | None, schema: Schema | None) -> None:
        self._agents = agents
        self._default = default_agent
        self._schema = schema
        self.facts = RowFacts()

    def agent_of(self, line: bytes, number: int) -> str:
        """The agent that the row in `line` is for, line `number` of the file. With a schema, `facts` grow.

        Raises:
            DatasetError: the row can't be used.
        """
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DatasetError(f"no valid JSON at column {error.colno}: {error.msg}") from error
        if not isinstance(row, dict):
            raise DatasetError("a row must be a JSON object")
        if not isinstance(row.get("responses_create_params"), dict):
            raise DatasetError(
                "has no responses_create_params, the request to the model: "
                f"{nearest('responses_create_params', row)} among the row's keys"
            )
        agent = self._named_agent(row.get("agent_ref"))
        if self._schema is not None:
            if kind := _no_text(row["responses_create_params"].get("input")):
                raise DatasetError(
                    f"responses_create_params.input has a part of type {kind}: only text can be trained, since samples "
                    "are token ids and the trainer's model neither sees nor hears"
                )
            try:
                self._schema(without_nulls(row["responses_create_params"]))  # as the trainer sends it
            except ValueError as error:
                raise DatasetError(f"responses_create_params: {describe(error)}") from error
            self._note(row["responses_create_params"], number)
        return agent

    def _note(self, request: dict[str, Any], number: int) -> None:
        if request.get("tools"):
            self.facts.with_tools += 1
            self.facts.first_with_tools = self.facts.first_with_tools or number
        length = sum(map(len, _texts(request.get("input")))) + len(request.get("instructions") or "")
        if length > self.facts.longest:
            self.facts.longest, self.facts.longest_line = length, number

    def _named_agent(self, reference: object) -> str:
        if reference is None:
            if self._default is None:
                raise DatasetError(
                    f"names no agent: give rows an agent_ref, or the dataset an agent ({nearest('', self._agents)})"
                )
            return self._default
        if not isinstance(reference, dict) or not isinstance(reference.get("name"), str):
            raise DatasetError(f'agent_ref must be {{"type": "{AGENT_TYPE}", "name": ...}}')
        if reference.get("type", AGENT_TYPE) != AGENT_TYPE:
            raise DatasetError(f"agent_ref.type must be {AGENT_TYPE}, not {reference['type']!r}")
        name = str(reference["name"])
        if name not in self._agents:
            raise DatasetError(f"agent_ref names no agent of the Gym config, {name!r}: {nearest(name, self._agents)}")
        return name


def _parts(messages: Any) -> Iterator[Any]:
    """Parts of all messages' contents; a text instead of a list of parts is one."""
    if isinstance(messages, str):
        yield messages
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, dict):
            continue
        yield message
        for key in ("content", "output", "summary"):
            content = message.get(key)
            yield from content if isinstance(content, list) else [content]


def _no_text(messages: Any) -> str | None:
    """The type of the first part that is no text."""
    kinds = (part.get("type") for part in _parts(messages) if isinstance(part, dict))
    return next((kind for kind in kinds if isinstance(kind, str) and kind in _NO_TEXT), None)


def _texts(messages: Any) -> Iterator[str]:
    for part in _parts(messages):
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


def responses_schema() -> Schema:
    """The schema that NeMo Gym's servers check requests with."""
    from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming

    return NeMoGymResponseCreateParamsNonStreaming.model_validate  # type: ignore[no-any-return]  # nemo_gym has no types here


def describe(error: ValueError) -> str:
    """A validation error in one line. A union fails once per arm; the telling failures come first."""
    listed = getattr(error, "errors", None)
    if listed is None:
        return str(error)[:MAX_TEXT]
    places: dict[str, str] = {}
    for item in sorted(listed(include_url=False, include_input=False), key=_rank):
        # ("input", 0, "NeMoGymEasyInputMessage", "role"): class names are arms of a union, not what the user wrote
        parts = [str(part) for part in item["loc"] if isinstance(part, int) or (part.islower() and part != "str")]
        places.setdefault(".".join(parts), item["msg"])
    return "; ".join(f"{place}: {message}" for place, message in list(places.items())[:2])[:MAX_TEXT]


def _rank(item: dict[str, Any]) -> int:
    match item["type"]:
        case "literal_error":
            return 0
        case "extra_forbidden":
            return 1
        case "missing":
            return 3
        case _:
            return 2
