"""Requests that go to a pod as they are: completions, responses, tokenize, models."""

from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web

import gymtrain_tracing as tracing
from gymtrain_api.ledger import CallTimes, LedgerEntry
from gymtrain_gateway.calls import Calls
from gymtrain_gateway.chat import Chat
from gymtrain_gateway.dispatch import Assignment
from gymtrain_gateway.ledger import Ledger
from gymtrain_gateway.pod_choice import conversation
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.sampling import Sampled, Sampling, grammar_asked
from gymtrain_gateway.upstream import CONNECT_SECONDS, Deadline, Upstream, refusal, translated

VERSION_HEADER = "x-gymtrain-weight-version"  # that answered; several, oldest first, where it changed meanwhile
_CHUNK = 64 * 1024


class Passthrough:
    """Passes requests on."""

    def __init__(
        self, calls: Calls, pods: Pods, upstream: Upstream, chat: Chat, ledger: Ledger, sampling: Sampling
    ) -> None:
        self._calls = calls
        self._pods = pods
        self._upstream = upstream
        self._chat = chat
        self._ledger = ledger
        self._sampling = sampling

    async def plain(self, request: web.Request, body: dict[str, Any] | None, deadline: Deadline) -> web.StreamResponse:
        """The pod's answer, piece by piece. Tried on another pod only before its first byte."""

        async def work(assignment: Assignment) -> web.StreamResponse:
            return await self._stream(
                request,
                body if body is None else self._pods.request_for(assignment.pod, assignment.version, body),
                assignment,
                deadline,
            )

        return await self._calls.run(conversation(body or {}), deadline, work)

    async def completions(self, request: web.Request, body: dict[str, Any], deadline: Deadline) -> web.StreamResponse:
        """POST /v1/completions. Answers that carry token ids are noted in the ledger."""
        if body.get("stream"):
            return await self.plain(request, body, deadline)
        sampled = self._sampling.of(body)

        async def work(assignment: Assignment) -> web.StreamResponse:
            queued = deadline.passed
            with tracing.sent("generate", {"server.address": assignment.pod}):
                answer = await self._upstream.post(
                    assignment.pod,
                    request.path,
                    self._pods.request_for(assignment.pod, assignment.version, sampled.body),
                    deadline,
                )
            in_vllm = deadline.passed - queued
            versions = await self._pods.versions_since(assignment.pod, assignment.version)
            times = CallTimes(seconds=deadline.passed, queued=queued, sampled=in_vllm)
            self._note(answer, versions, sampled, times)
            return web.json_response(answer, headers={VERSION_HEADER: ",".join(versions)})

        return await self._calls.run(conversation(body), deadline, work)

    async def tokenize(self, request: web.Request, body: dict[str, Any], deadline: Deadline) -> web.StreamResponse:
        """POST /tokenize. For the messages of a chat completion: the tokens that it really used."""

        async def work(assignment: Assignment) -> web.StreamResponse:
            mine = self._pods.request_for(assignment.pod, assignment.version, body)
            answer = await self._upstream.ask(assignment.pod, "/tokenize", mine, deadline)
            if _asks_for_a_prompt(mine):
                tokens = await self._chat.prompt_of(mine, assignment, deadline)
                if tokens is not None:
                    answer |= {"tokens": tokens, "count": len(tokens)}
                    answer["token_strs"] = None  # of the template's tokens, which these are not
            return web.json_response(answer, headers=_headers(assignment))

        return await self._calls.run(conversation(body), deadline, work)

    async def _stream(
        self, request: web.Request, body: Mapping[str, Any] | None, assignment: Assignment, deadline: Deadline
    ) -> web.StreamResponse:
        where = f"{request.method} {assignment.pod}{request.path}"
        timeout = aiohttp.ClientTimeout(total=deadline.left(), sock_connect=CONNECT_SECONDS)
        answer: web.StreamResponse | None = None
        try:
            async with self._upstream.http.request(
                request.method,
                assignment.pod + request.path_qs,
                json=body,
                timeout=timeout,
                headers=tracing.headers(),
            ) as response:
                if response.status >= 500:
                    raise refusal(response.status, await response.read(), response.content_type, where)
                headers = {
                    "Content-Type": response.headers.get("Content-Type", "application/json"),
                    **_headers(assignment),
                }
                first = await response.content.read(_CHUNK)
                answer = web.StreamResponse(status=response.status, headers=headers)
                await answer.prepare(request)
                while first:
                    await answer.write(first)
                    first = await response.content.read(_CHUNK)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            if answer is None:
                raise translated(error, where, deadline) from error
            if request.transport is not None:
                request.transport.abort()  # the client must not take a part for the whole
            return answer
        await answer.write_eof()
        return answer

    def _note(self, answer: Mapping[str, Any], versions: list[str], sampled: Sampled, times: CallTimes) -> None:
        constrained = self._sampling.constrained(sampled, grammar_asked(sampled.body))
        for choice in answer.get("choices") or []:
            prompt, output = choice.get("prompt_token_ids"), choice.get("token_ids")
            if prompt is not None and output is not None:
                entry = LedgerEntry(
                    versions=versions,
                    finish_reason=choice.get("finish_reason"),
                    constrained=constrained,
                    replaced=sampled.replaced,
                    temperatures=sampled.temperatures,
                    times=times,
                )
                self._ledger.note(prompt, output, entry)


def _asks_for_a_prompt(body: Mapping[str, Any]) -> bool:
    return (
        isinstance(body.get("messages"), list)
        and body.get("add_generation_prompt") is not False
        and not body.get("continue_final_message")
    )


def _headers(assignment: Assignment) -> dict[str, str]:
    return {VERSION_HEADER: assignment.version} if assignment.version else {}
