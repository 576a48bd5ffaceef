"""What an agent's `POST /run` answers, read into what training needs.

Each model call (a turn) leaves its token data on the last output item that it produced: `prompt_token_ids` (the whole
prompt of the call), `generation_token_ids` and `generation_log_probs`. Other items have none. Seen with nemo-gym 0.4.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gymtrain_api.ledger import token_digest
from gymtrain_api.rows import FAILURE_CLASS, JUDGE_ERROR
from gymtrain_trainer.errors import AnswerError, FailureKind
from gymtrain_trainer.rollouts.inner_error import clipped
from gymtrain_trainer.rollouts.transcript import without_tokens

_ABORTED = frozenset({"failed", "cancelled"})  # `status` of a response


@dataclass(frozen=True)
class Turn:
    """One model call: ids of its whole prompt, the ids that it sampled, and their log-probabilities.

    As arrays of 4 bytes a number: thousands of rollouts are open at once, and each call has the whole prompt.
    """

    prompt_ids: array[int]
    output_ids: array[int]
    log_probs: array[float]

    @classmethod
    def of(cls, prompt_ids: Sequence[int], output_ids: Sequence[int], log_probs: Sequence[float]) -> "Turn":
        """From numbers of any kind.

        Raises:
            TypeError, OverflowError: one is no number, or no token id.
        """
        return cls(array("I", prompt_ids), array("I", output_ids), array("f", log_probs))

    @cached_property
    def digest(self) -> str:
        """Of the call, in the gateway's ledger."""
        return token_digest(self.prompt_ids, self.output_ids)


@dataclass(frozen=True)
class Answer:
    """One finished rollout."""

    turns: list[Turn]
    reward: float
    text: str  # what the model said, for people
    truncated: bool  # it hit the token limit, by the response's own account
    scored: bool = True  # the reward is the environment's; else it is 0, for the lack of one
    output: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)  # the response's, without tokens
    seconds: float = field(default=0.0, compare=False)  # that the try took which gave it
    tries: int = field(default=1, compare=False)
    began: float = field(default=0.0, compare=False)  # time.monotonic() at which that try began
    slot_seconds: float = field(default=0.0, compare=False)  # waiting for a slot, in all tries
    earlier_seconds: float = field(default=0.0, compare=False)  # in tries that failed, and in pauses after them

    @property
    def generated(self) -> int:
        """Tokens that the model sampled in all turns."""
        return sum(len(turn.output_ids) for turn in self.turns)


class UnscoredError(AnswerError):
    """The policy's tokens are known, but the environment gave no reward for them."""

    def __init__(self, message: str, kind: FailureKind, answer: Answer) -> None:
        """`answer`: not scored."""
        super().__init__(message, kind)
        self.answer = answer


def parse_answer(body: Any) -> Answer:
    """The answer of one rollout.

    Raises:
        AnswerError: it has no turn with token ids and log-probabilities. Such a rollout is a failure: made-up tokens
            would train the model on something that didn't happen.
        UnscoredError: it has those, but no reward.
    """
    if not isinstance(body, Mapping):
        raise AnswerError(f"the agent answered {type(body).__name__} where an object was expected")
    _check_measured(body)
    return judged(parse_response(body.get("response")), body)


def parse_response(response: Any) -> Answer:
    """What the policy wrote, not scored yet.

    Raises:
        AnswerError: there is no turn with token ids and log-probabilities.
    """
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list):
        raise AnswerError("the answer has no response.output")
    assert isinstance(response, Mapping)
    if response.get("status") in _ABORTED:
        raise AnswerError(f"generation ended as {response['status']}: {clipped(str(response.get('error')))}")
    items = [item for item in output if isinstance(item, Mapping)]
    turns = [_turn(item) for item in items if item.get("prompt_token_ids") is not None]
    turns = [turn for turn in turns if turn.output_ids]
    incomplete = response.get("incomplete_details")
    reason = incomplete.get("reason") if isinstance(incomplete, Mapping) else None
    if not turns:
        why = f" (incomplete: {reason}; is the prompt longer than vLLM's --max-model-len?)" if reason else ""
        raise AnswerError(
            f"the answer carries no token ids{why}; the policy model server needs return_token_id_information: true"
        )
    truncated = reason == "max_output_tokens"
    return Answer(turns, 0.0, _text(items), truncated, scored=False, output=without_tokens(items))


def judged(answer: Answer, verdict: Any) -> Answer:
    """The answer with the verdict's reward.

    Raises:
        AnswerError: the verdict says that its reward isn't a measurement.
        UnscoredError: it has none.
    """
    reward = None
    if isinstance(verdict, Mapping):
        _check_measured(verdict)
        reward = verdict.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        why = f"the answer's reward is {clipped(repr(reward))}, not a number"
        raise UnscoredError(why, FailureKind.ENVIRONMENT, answer)
    return replace(answer, reward=float(reward), scored=True)


def _check_measured(body: Mapping[str, Any]) -> None:
    """Raises AnswerError where the environment says so: a judge that was away, a sandbox that was lost.

    `_ng_failure_class` is Gym's own mark: of agents in 0.4, and of each `/verify` whose judge failed from 0.5 on, which
    answers 200 with a reward of 0. Gym's rollout collection leaves such rows out of its metrics, too.
    """
    failed = body.get(FAILURE_CLASS)
    if body.get("mask_sample") is True or failed:
        why = body.get("failure_reason") or body.get("failure_kind") or body.get(JUDGE_ERROR) or failed
        text = clipped(str(why or "no reason given"))
        raise AnswerError(f"the environment says that its reward isn't a measurement: {text}")


def _turn(item: Mapping[str, Any]) -> Turn:
    """Raises AnswerError where ids and log-probabilities don't fit each other."""
    prompt, output = item["prompt_token_ids"], item.get("generation_token_ids")
    log_probs = item.get("generation_log_probs")
    if output is None or log_probs is None:
        raise AnswerError("the answer has prompt_token_ids, but no generation_token_ids or generation_log_probs")
    if len(output) != len(log_probs):
        raise AnswerError(f"the answer has {len(output)} token ids, but {len(log_probs)} log-probabilities")
    try:
        turn = Turn.of(prompt, output, log_probs)
    except (TypeError, OverflowError) as error:
        raise AnswerError(f"the answer has something else than token ids and log-probabilities: {error}") from error
    if not math.isfinite(sum(turn.log_probs)):
        raise AnswerError("a log-probability in the answer isn't a finite number")
    return turn


def _text(items: list[Mapping[str, Any]]) -> str:
    """Messages and tool calls as one text."""
    parts: list[str] = []
    for item in items:
        match item.get("type"):
            case "message":
                content = item.get("content")
                pieces = [{"text": content}] if isinstance(content, str) else content or []
                parts.append("".join(str(piece.get("text", "")) for piece in pieces if isinstance(piece, Mapping)))
            case "function_call":
                parts.append(f"[{item.get('name')}({item.get('arguments')})]")
            case "function_call_output":
                parts.append(f"[→ {item.get('output')}]")
    return "\n".join(parts)


def prompt_text(row: Mapping[str, Any]) -> str:
    """The row's prompt as one text, for people."""
    params = row.get("responses_create_params")
    given = params.get("input") if isinstance(params, Mapping) else None
    if isinstance(given, str):
        return given
    texts = []
    for message in given if isinstance(given, list) else []:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list):
            content = "".join(str(piece.get("text", "")) for piece in content if isinstance(piece, Mapping))
        if content is not None:
            texts.append(f"{message.get('role', '?')}: {content}")
    return "\n".join(texts)
