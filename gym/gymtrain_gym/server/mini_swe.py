"""Token ids in the answers of mini_swe_agent_2, which nemo-gym 0.4 leaves out.

The agent keeps a trajectory of chat messages and turns them into the items of its answer. What the policy's model
server says about tokens stays behind in them, and a call without a valid tool call isn't even in the trajectory: only
the complaint about it is. Here both are kept: an item forevery call of the model, with the tokens of that call. They
also go back to the model on the messages of earlier turns, as NeMo Gym's other agents do it: that is how the gateway
keeps a conversation's tokens exact. What the model is asked, and what is run, stays as it is.
"""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import gymtrain_tracing as tracing
from gymtrain_gym import nemo_gym_internals

IMPLEMENTATION = "mini_swe_agent_2"
TOKEN_KEYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")

type Split = Callable[[list[dict[str, Any]]], tuple[list[Any], list[dict[str, Any]], list[Any]]]


def install(module: MutableMapping[str, Any]) -> None:
    """Puts `run` and `split_with_tokens` around the functions of the agent's module."""
    nemo_gym_internals.wrap_mini_swe_agent(module, run, split_with_tokens)


def run(original: Callable[..., Any], **params: Any) -> Any:
    """`original`, with the answers of failed calls kept; in a worker of Ray, where the user brings a Ray cluster."""
    nemo_gym_internals.wrap_litellm_model(_parse, _prepare)
    return original(**params)


def split_with_tokens(
    original: Split, messages: list[dict[str, Any]]
) -> tuple[list[Any], list[dict[str, Any]], list[Any]]:
    """The trajectory as `original` splits it, with token ids on the last item of every call."""
    given, _, responses = original(messages)
    output: list[dict[str, Any]] = []
    for message in messages:
        items = original([message])[1] if message.get("role") not in ("system", "user") else []
        if tokens := tokens_of(message):
            items = items or [_text_item(message)]
            items[-1] = items[-1] | tokens
        output += items
    return given, output, responses


def tokens_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Token ids and log-probabilities of the call behind a message of the trajectory."""
    answer = _answer(message)
    found = {**answer, **(answer.get("provider_specific_fields") or {})}
    return {key: found[key] for key in TOKEN_KEYS if found.get(key) is not None}


def _answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own message, as the endpoint gave it."""
    response = (message.get("extra") or {}).get("response") or {}
    choices = response.get("choices") or [{}]
    return choices[0].get("message") or {}


def _text_item(message: Mapping[str, Any]) -> dict[str, Any]:
    answer = _answer(message)
    response = (message.get("extra") or {}).get("response") or {}
    return {
        "id": f"msg_{response.get('id', '')}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": answer.get("content") or "", "annotations": []}],
    }


def _parse(original: Callable[..., Any], model: Any, response: Any) -> Any:
    """LitellmModel._parse_actions, whose complaint keeps the answer that it is about."""
    from minisweagent.exceptions import FormatError

    try:
        return original(model, response)
    except FormatError as error:
        error.messages[0].setdefault("extra", {})["response"] = response.model_dump()
        raise


def _prepare(original: Callable[..., Any], model: Any, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """LitellmModel._prepare_messages_for_api, whose assistant messages carry their tokens."""
    if caller := tracing.headers():  # LiteLLM has a client of its own
        own = model.config.model_kwargs
        model.config.model_kwargs = {**own, "extra_headers": {**(own.get("extra_headers") or {}), **caller}}
    prepared: list[dict[str, Any]] = original(model, messages)
    assert len(prepared) == len(messages)
    return [
        message | tokens_of(kept) if message.get("role") == "assistant" else message
        for message, kept in zip(prepared, messages, strict=True)
    ]
