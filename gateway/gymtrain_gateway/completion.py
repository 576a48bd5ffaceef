"""From vLLM's answers to an OpenAI chat completion: pure.

Before 0.32 vLLM writes sampled tokens as "token_id:N" where 0.32 writes numbers, and says neither what ended an answer
nor which weights sampled it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymtrain_gateway.errors import MissingRouteError, PodFailedError

_PREFIX = "token_id:"

# Of an answer whose text generate says, at most. It names the text of each token too: from about 170 tokens on that
# takes vLLM's API server longer than another call does (measured with vLLM 0.32).
_TEXT_TOKENS = 64


@dataclass(frozen=True)
class Generated:
    """One answer of /inference/v1/generate."""

    response: Mapping[str, Any]  # as it came
    tokens: list[int]
    log_probs: list[float]
    finish_reason: str
    versions: list[str]  # that sampled it, oldest first; empty if this vLLM doesn't say
    stop_string: str | None
    ended: bool  # by a token that is no part of the text
    text: str | None = None  # where it was asked for

    @property
    def text_tokens(self) -> list[int]:
        """The tokens that make the text."""
        return self.tokens[:-1] if self.ended else self.tokens


def wants_decoded(request: Mapping[str, Any]) -> bool:
    """Whether log-probabilities are asked for with each token's text, which a derender makes, and not its id."""
    return bool(request.get("logprobs")) and not request.get("return_tokens_as_token_ids")


def says_text(rendered: Mapping[str, Any], sampling: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether generate shall say the text of the answer, which is the message then: a derender is saved.

    It can where nothing is to be read out of the text: no tool calls, and no reasoning, of which a render tells since
    vLLM 0.32 (a parser that wants special tokens has it keep them). It saves time where answers are short.
    """
    return (
        0 < int(sampling["max_tokens"] or 0) <= _TEXT_TOKENS
        and not request.get("tools")
        and not request.get("top_logprobs")
        and not wants_decoded(request)
        and "reasoning_parser_kwargs" in rendered
        and rendered["reasoning_parser_kwargs"] is None
        and sampling.get("skip_special_tokens", True)
    )


def read(response: Mapping[str, Any], request: Mapping[str, Any]) -> Generated:
    """Reads an answer to `request` (a chat completion).

    Raises:
        PodFailedError: the answer was cut off, as when the pod is paused with mode=abort, or makes no sense.
        MissingRouteError: this vLLM doesn't say what ended an answer, and the request has stop strings.
    """
    choice = (response.get("choices") or [{}])[0]
    tokens, finish = choice.get("token_ids") or [], choice.get("finish_reason")
    if finish in ("abort", "error") or not tokens:
        raise PodFailedError("aborted", f"the pod gave up the answer: finish_reason {finish}, {len(tokens)} tokens")
    content = (choice.get("logprobs") or {}).get("content") or []
    if len(content) != len(tokens):
        raise PodFailedError("garbled", f"the pod sent {len(content)} log-probabilities for {len(tokens)} tokens")
    stop = choice.get("stop_reason")
    if finish == "stop" and request.get("stop") and "stop_reason" not in choice:
        raise MissingRouteError(
            "this vLLM's /inference/v1/generate reports no stop_reason: leave `stop` out, or use vLLM 0.32 or later"
        )
    keep = bool(request.get("include_stop_str_in_output"))
    return Generated(
        response=response,
        tokens=[int(token) for token in tokens],
        log_probs=[float(entry["logprob"]) for entry in content],
        finish_reason=str(finish or "stop"),
        versions=_versions(choice),
        stop_string=stop if isinstance(stop, str) and not keep else None,
        ended=finish == "stop" and not isinstance(stop, str) and not keep and stop in (None, tokens[-1]),
        text=choice.get("text"),
    )


def to_derender(generated: Generated, prompt: Sequence[int], logprobs: bool) -> dict[str, Any]:
    """`generate_response` of a derender request. A trailing end-of-turn token would become text there."""
    choice = dict(generated.response["choices"][0])
    choice["token_ids"] = generated.text_tokens
    if not logprobs:
        choice["logprobs"] = None
    return {**generated.response, "choices": [choice], "prompt_token_ids": list(prompt)}


def plain(generated: Generated, model: Any, created: int) -> dict[str, Any]:
    """The completion of an answer that needs no derender, or of one without text, which vLLM refuses to derender."""
    message = {"role": "assistant", "content": generated.text or "", "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": generated.finish_reason}
    request_id = generated.response.get("request_id")
    return {"id": request_id, "object": "chat.completion", "created": created, "model": model, "choices": [choice]}


def finish(
    completion: dict[str, Any],
    generated: Generated,
    prompt: list[int],
    request: Mapping[str, Any],
    *,
    with_ids: bool,
) -> dict[str, Any]:
    """Adds to vLLM's derendered `completion` what model servers read tokens from."""
    choice = completion["choices"][0]
    message = choice["message"]
    if generated.stop_string is not None:
        _cut(message, generated.stop_string)
    calls = message.get("tool_calls") or []
    if request.get("parallel_tool_calls") is False:
        calls = message["tool_calls"] = calls[:1]
    named = isinstance(request.get("tool_choice"), Mapping)
    choice["finish_reason"] = "tool_calls" if calls and not named else generated.finish_reason
    choice["stop_reason"] = generated.response["choices"][0].get("stop_reason")
    if not request.get("logprobs"):
        choice["logprobs"] = None
    else:
        if request.get("return_tokens_as_token_ids") or not choice.get("logprobs"):
            choice["logprobs"] = {"content": _logprobs(generated)}
        for entry in choice["logprobs"]["content"]:  # generate names the sampled token in any case
            entry["top_logprobs"] = entry["top_logprobs"][: request.get("top_logprobs") or 0]
    if with_ids:
        message |= {
            "prompt_token_ids": prompt,
            "generation_token_ids": generated.tokens,
            "generation_log_probs": generated.log_probs,
        }
    if request.get("return_token_ids"):
        completion["prompt_token_ids"] = prompt
        choice["token_ids"] = generated.tokens
    completion["usage"] = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(generated.tokens),
        "total_tokens": len(prompt) + len(generated.tokens),
    }
    return completion


def _logprobs(generated: Generated) -> list[dict[str, Any]]:
    """The log-probabilities in OpenAI's form, with ids in place of texts."""
    entries = []
    for token, entry in zip(generated.tokens, generated.response["choices"][0]["logprobs"]["content"], strict=True):
        top = [
            {"token": _placeholder(one), "logprob": one["logprob"], "bytes": None}
            for one in entry.get("top_logprobs") or []
        ]
        name = f"{_PREFIX}{token}"
        entries.append({"token": name, "logprob": entry["logprob"], "bytes": None, "top_logprobs": top})
    return entries


def _placeholder(entry: Mapping[str, Any]) -> str:
    return f"{_PREFIX}{entry['token_id']}" if "token_id" in entry else str(entry["token"])


def _versions(choice: Mapping[str, Any]) -> list[str]:
    found: dict[str, None] = {}
    for span in choice.get("weight_versions") or []:
        found[str(span["version"])] = None
    return list(found)


def _cut(message: dict[str, Any], stop: str) -> None:
    """vLLM ends the text before a stop string; its tokens go on to the end of the last one."""
    for field in ("content", "reasoning"):
        text = message.get(field)
        if isinstance(text, str) and stop in text:
            message[field] = text[: text.index(stop)]
            return
