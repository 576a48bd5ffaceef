"""Replaces a call's sampling settings with the run's. Pure, except that it remembers what it logged.

A call whose tokens can be trained on (its answer carries them) is sampled as the trainer scores it, and in no other
way: agents, model servers and rows of a dataset have settings of their own (NeMo Gym's rows carry `temperature`,
`top_p` and `metadata.extra_body`), and a request that leaves a setting out gets the server's default for it. Any other
call, such as that of a judge with a model server of its own, is sampled as it asks.

Where evaluations have a temperature of their own, their calls ask for it by a mark (gymtrain_api.sampling.marked), and
the ledger has the temperature of each call: the trainer uses none of the other kind.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymtrain_api.sampling import in_full, is_marked
from gymtrain_gateway.history import has_past_turns
from gymtrain_gateway.metrics import Metrics

logger = logging.getLogger(__name__)

# Left out of the request: each bends the distribution, or draws the same tokens forevery rollout of a row. By the
# values that do nothing.
_DROPPED: Mapping[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "min_tokens": (0,),  # the end of the turn has no probability before
    "thinking_token_budget": (),  # the end of a thought is forced
    "use_beam_search": (False,),
    "seed": (),
}
_ALSO_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"top_k": (-1,)}

# Fields of vLLM's structured_outputs that hold an answer to a grammar.
_GRAMMARS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True)
class Sampled:
    """A request as it is sampled."""

    body: dict[str, Any]
    trained: bool = False  # its answer carries its tokens: without them nobody can train on it
    replaced: tuple[str, ...] = ()  # settings that the call asked for and didn't get
    temperatures: tuple[float, ...] = ()  # that it is sampled at, for the ledger


class Sampling:
    """What the run samples from."""

    def __init__(self, temperature: float, metrics: Metrics, evaluation: float | None = None) -> None:
        """`evaluation`: the temperature of evaluations, where it is another."""
        self._temperature = temperature
        self._evaluation = evaluation
        self._metrics = metrics
        self._told: set[str] = set()

    def of(self, body: dict[str, Any]) -> Sampled:
        """The request, with the run's sampling where its tokens can be trained on."""
        if not (body.get("logprobs") or body.get("return_token_ids") or has_past_turns(body.get("messages"))):
            return Sampled(body)
        evaluates = self._evaluation is not None and is_marked(body.get("temperature"), self._evaluation)
        temperature = self._evaluation if evaluates and self._evaluation is not None else self._temperature
        wanted = in_full(temperature)
        asked_for = body | {"temperature": temperature} if evaluates else body
        replaced = [
            name
            for name, value in wanted.items()
            if asked_for.get(name) is not None and asked_for[name] not in (value, *_ALSO_NEUTRAL.get(name, ()))
        ]
        replaced += [name for name, idle in _DROPPED.items() if body.get(name) is not None and body[name] not in idle]
        for name in replaced:
            self._metrics.replaced_sampling.labels(name).inc()
        if not self._told.issuperset(replaced):
            self._told.update(replaced)
            asked = ", ".join(f"{name} {str(body[name])[:40]}" for name in replaced)
            logger.warning("a call asks for %s: the run's own sampling is used, because training depends on it", asked)
        kept = {name: value for name, value in body.items() if name not in _DROPPED}
        temperatures = () if self._evaluation is None else (temperature,)
        return Sampled(kept | wanted, trained=True, replaced=tuple(replaced), temperatures=temperatures)

    def constrained(self, sampled: Sampled, grammar: str) -> bool:
        """Whether the tokens of an answer that can be trained on were held to `grammar`, which is counted."""
        if not grammar or not sampled.trained:
            return False
        self._metrics.constrained.labels(grammar).inc()
        return True


def grammar_of(sampling_params: Mapping[str, Any]) -> str:
    """The grammar that constrains an answer, by vLLM's name; empty if there is none.

    `sampling_params`: vLLM's own, which have a tool choice and a response format in them, as structured outputs.
    """
    outputs = sampling_params.get("structured_outputs") or {}
    return next((name for name in _GRAMMARS if outputs.get(name) not in (None, False)), "")


def grammar_asked(body: Mapping[str, Any]) -> str:
    """The same of a completion request, which vLLM doesn't render for us."""
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, Mapping) else None
    named = {"json_schema": "json", "json_object": "json_object", "structural_tag": "structural_tag"}
    return grammar_of(body) or named.get(str(kind), "")
