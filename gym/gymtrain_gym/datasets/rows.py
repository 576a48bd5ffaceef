"""The rows of a dataset: is each a request that an agent's /run accepts, and which agent is it for? What will the
policy's vLLM make of them?

Without NeMo Gym, but for the schema: the data container loads in a third of the time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from gymtrain_api.rows import without_nulls
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.vllm_arguments import AUTO_TOOL_CHOICE, TOOL_CALL_PARSER, max_model_len, parses_tool_calls
from gymtrain_api.wiring import GymServerInfo
from gymtrain_gym.config.findings import Findings, nearest
from gymtrain_gym.errors import DatasetError

AGENT_TYPE = "responses_api_agents"
REASONING_GYM = "reasoning_gym"
MAX_TEXT = 300  # characters of a library's error message
_CHARACTERS_PER_TOKEN = 6  # no usual tokenizer needs fewer tokens for a long text: prose takes 4 characters a token
_TRL_DEFAULT_COMPLETION = 2048  # tokens, TRL 1.16

# Parts of a message that are no text; of the Responses API, and of Chat Completions.
_NO_TEXT = {"input_image", "image", "image_url", "input_audio", "input_video", "video_url", "input_file"}

type Schema = Callable[[Any], object]  # raises ValueError


@dataclass(frozen=True)
class AgentDirectory:
    """The agents that rows can name."""

    names: frozenset[str]
    reasoning_gym: frozenset[str] = frozenset()  # agents in front of a reasoning_gym server

    @classmethod
    def of(cls, servers: Sequence[GymServerInfo]) -> Self:
        """The agents among the servers of a Gym config."""
        scoring = {s.name for s in servers if s.kind == "resources" and s.implementation == REASONING_GYM}
        agents = [s for s in servers if s.kind == "agent"]
        return cls(frozenset(s.name for s in agents), frozenset(s.name for s in agents if scoring & set(s.references)))

    def default(self, dataset_agent: str | None, generated: bool) -> str | None:
        """The agent of rows that name none: the dataset's, the only one, or for a generated dataset the only one
        that reasoning_gym scores."""
        if dataset_agent is not None:
            return dataset_agent
        candidates = self.reasoning_gym if generated and self.reasoning_gym else self.names
        return next(iter(candidates)) if len(candidates) == 1 else None


@dataclass
class RowFacts:
    """What preflight wants to know of a dataset as a whole; lines count from 1, 0 is none."""

    with_tools: int = 0  # rows
    first_with_tools: int = 0  # line
    longest: int = 0  # characters of the longest prompt
    longest_line: int = 0


@dataclass(frozen=True)
class Policy:
    """How the run's policy is served."""

    parses_tool_calls: bool
    context: int | None = None  # tokens of prompt and answer; None if spec.inference.args don't say it
    answer: int = _TRL_DEFAULT_COMPLETION  # tokens of it that an answer may take

    @classmethod
    def of(cls, spec: GymTrainingRunSpec) -> Self:
        """The policy of a run. A wrong type counts as TRL's default: the trainer's preflight reports it."""
        context = max_model_len(spec.inference.args)
        answer = spec.trainer.config.get("max_completion_length")
        return cls(
            parses_tool_calls(spec.inference.args),
            context[1] if context else None,
            answer if isinstance(answer, int) and not isinstance(answer, bool) else _TRL_DEFAULT_COMPLETION,
        )


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
            _check_encoding(line)
            raise DatasetError(f"invalid JSON at column {error.colno}: {error.msg}") from error
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


def _check_encoding(line: bytes) -> None:
    """Finds why a line is no JSON where its bytes are the reason: the parser's own message doesn't say it.

    Raises:
        DatasetError: it isn't UTF-8, or begins like a file.
    """
    if line.startswith(b"\xef\xbb\xbf"):
        raise DatasetError("begins with a byte order mark, as if files had been joined: remove it")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"isn't UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}. Convert the file, for example "
            "with iconv -f WINDOWS-1252 -t UTF-8"
        ) from error


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


def warn_of_policy(policy: Policy, facts: RowFacts, source: str, findings: Findings) -> None:
    """Adds what the rows of `source` will run into; of lengths, without a tokenizer, only what is far too long."""
    if facts.with_tools and not policy.parses_tool_calls:
        findings.warn(
            f"{source}:{facts.first_with_tools}",
            f"{facts.with_tools} rows have tools, and vLLM answers none of them: add {AUTO_TOOL_CHOICE} and "
            f"{TOOL_CALL_PARSER}=NAME to spec.inference.args, where NAME fits the model (hermes for Qwen)",
        )
    least = facts.longest // _CHARACTERS_PER_TOKEN
    if policy.context is not None and least > policy.context - policy.answer:
        findings.warn(
            f"{source}:{facts.longest_line}",
            f"has a prompt of {facts.longest} characters, {least} tokens or more; --max-model-len {policy.context} "
            f"leaves {max(0, policy.context - policy.answer)} beside an answer of {policy.answer} "
            "(max_completion_length): vLLM will refuse it",
        )


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
