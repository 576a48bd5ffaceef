"""POST /v1/chat/completions: render, splice, generate and, where the text isn't the message, derender; on one pod."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymtrain_tracing as tracing
from gymtrain_api.ledger import CallTimes, LedgerEntry
from gymtrain_gateway import completion
from gymtrain_gateway.calls import Calls
from gymtrain_gateway.completion import Generated
from gymtrain_gateway.dispatch import Assignment
from gymtrain_gateway.errors import BadCallError
from gymtrain_gateway.history import past_turns
from gymtrain_gateway.ledger import Ledger
from gymtrain_gateway.metrics import Metrics
from gymtrain_gateway.pod_choice import conversation
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.prompts import DERENDER, Prompt, Prompter, UsedPrompts, derender_request, plain_request
from gymtrain_gateway.sampling import Sampled, Sampling, grammar_of
from gymtrain_gateway.upstream import Deadline, Upstream

GENERATE = "/inference/v1/generate"

# The default of vLLM's SamplingParams. `render` leaves out what equals a default, and `generate` takes a missing
# max_tokens for all that fits into the context (vLLM 0.32, entrypoints/scale_out/token_in_token_out/serving.py).
_DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True)
class ChatAnswer:
    """What the client gets."""

    body: dict[str, Any]
    entry: LedgerEntry
    fork_reason: str


class Chat:
    """Answers chat completions."""

    def __init__(
        self,
        calls: Calls,
        pods: Pods,
        upstream: Upstream,
        ledger: Ledger,
        prompts: UsedPrompts,
        metrics: Metrics,
        sampling: Sampling,
    ) -> None:
        self._calls = calls
        self._pods = pods
        self._upstream = upstream
        self._prompter = Prompter(upstream)
        self._ledger = ledger
        self._prompts = prompts
        self._metrics = metrics
        self._sampling = sampling

    async def complete(self, body: dict[str, Any], deadline: Deadline) -> ChatAnswer:
        """The completion.

        Raises:
            CallError: it can't be had.
        """
        _check(body)
        sampled = self._sampling.of(body)
        return await self._calls.run(
            conversation(body), deadline, lambda assignment: self._on_pod(assignment, sampled, deadline)
        )

    async def prompt_of(self, body: dict[str, Any], assignment: Assignment, deadline: Deadline) -> list[int] | None:
        """Tokens of the prompt that a chat completion of these messages uses; None if vLLM's template has them."""
        found = self._prompts.find(body)
        if found is None and past_turns(body["messages"]):
            found = (
                await self._prompter.prepare(
                    assignment.pod, self._pods.request_for(assignment.pod, assignment.version, body), deadline
                )
            ).tokens
        return found

    async def _on_pod(self, assignment: Assignment, sampled: Sampled, deadline: Deadline) -> ChatAnswer:
        body, queued = sampled.body, deadline.passed
        request = self._pods.request_for(assignment.pod, assignment.version, body)
        with tracing.span("render"):
            prompt = await self._prompter.prepare(assignment.pod, request, deadline)
        asked = self._generate_request(assignment, prompt, body)
        before = deadline.passed
        with tracing.sent("generate", {"server.address": assignment.pod}):
            raw = await self._upstream.post(assignment.pod, GENERATE, asked, deadline)
        in_vllm = deadline.passed - before
        generated = completion.read(raw, body)
        answer = await self._message(assignment, request, prompt, generated, deadline)
        answer = completion.finish(answer, generated, prompt.tokens, body, with_ids=sampled.trained)
        entry = LedgerEntry(
            versions=await self._versions(assignment, generated),
            history=prompt.history,
            finish_reason=generated.finish_reason,
            constrained=self._sampling.constrained(sampled, grammar_of(prompt.request["sampling_params"])),
            replaced=sampled.replaced,
            temperatures=sampled.temperatures,
            times=CallTimes(seconds=deadline.passed, queued=queued, sampled=in_vllm),
        )
        if generated.stop_string is None:  # else the message says less than its tokens
            self._prompter.remember(prompt.tokens, generated.tokens, answer["choices"][0]["message"])
        self._note(body, prompt, generated, entry)
        if tracing.on():
            tracing.note(_told(prompt, generated, entry))
        return ChatAnswer(answer, entry, prompt.fork.reason if prompt.fork else "")

    def _generate_request(self, assignment: Assignment, prompt: Prompt, body: Mapping[str, Any]) -> dict[str, Any]:
        facts = self._pods.facts(assignment.pod)
        length = facts.max_model_len if facts else None
        if length is not None and len(prompt.tokens) >= length:
            # In vLLM's words, by which model servers know that a conversation is at its end.
            raise BadCallError(
                f"This model's maximum context length is {length} tokens. However, your prompt contains "
                f"{len(prompt.tokens)} input tokens. Please reduce the length of the input prompt."
            )
        sampling = dict(prompt.request["sampling_params"])
        if sampling.get("logprobs") is None:
            sampling["logprobs"] = 0
        sampling.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
        if length is not None and sampling["max_tokens"]:
            sampling["max_tokens"] = min(int(sampling["max_tokens"]), length - len(prompt.tokens))
        as_text = completion.says_text(prompt.request, sampling, body)
        if not as_text and not sampling.get("stop"):
            sampling["detokenize"] = False  # the text is made once, by derender
        request = {**prompt.request, "token_ids": prompt.tokens, "sampling_params": sampling, "stream": False}
        if as_text:
            request["output_mode"] = "text"
        for name in ("token_offsets", "assistant_tokens_mask"):
            request.pop(name, None)
        return request

    async def _message(
        self, assignment: Assignment, request: dict[str, Any], prompt: Prompt, generated: Generated, deadline: Deadline
    ) -> dict[str, Any]:
        if not generated.text_tokens or generated.text is not None:
            return completion.plain(generated, request.get("model"), int(time.time()))
        response = completion.to_derender(generated, prompt.tokens, completion.wants_decoded(request))
        body = derender_request(plain_request(request), response, prompt.tokens)
        with tracing.span("derender"):
            return await self._upstream.ask(assignment.pod, DERENDER, body, deadline)

    async def _versions(self, assignment: Assignment, generated: Generated) -> list[str]:
        """Weights that sampled the answer, oldest first."""
        if assignment.version and self._pods.serves(assignment.pod, assignment.version):
            return [assignment.version]  # an adapter; vLLM's spans tell of the weights below it
        if generated.versions:
            return generated.versions
        return await self._pods.versions_since(assignment.pod, assignment.version)

    def _note(self, body: dict[str, Any], prompt: Prompt, generated: Generated, entry: LedgerEntry) -> None:
        self._ledger.note(prompt.tokens, generated.tokens, entry)
        self._prompts.note(body, prompt.tokens)
        self._metrics.prompt_tokens.inc(len(prompt.tokens))
        self._metrics.generated_tokens.inc(len(generated.tokens))
        self._metrics.turns.labels(prompt.history).inc()
        if prompt.fork is not None:
            self._metrics.forks.labels(prompt.fork.reason).inc()


def _told(prompt: Prompt, generated: Generated, entry: LedgerEntry) -> dict[str, tracing.Value]:
    """What the span of a call tells of it: never what was said."""
    return {
        "gymtrain.weight_version": ",".join(entry.versions),
        "gymtrain.history": entry.history,
        "gen_ai.usage.input_tokens": len(prompt.tokens),
        "gen_ai.usage.output_tokens": len(generated.tokens),
        "gymtrain.finish_reason": generated.finish_reason or "",
    }


def _check(body: Mapping[str, Any]) -> None:
    if body.get("n") not in (None, 1):
        raise BadCallError(f"n: {body['n']}: the gateway returns one choice per request; send n requests")
    if body.get("stream"):
        raise BadCallError("stream: token ids are exact only in whole answers, so leave stream out")
    plain_request(body)
