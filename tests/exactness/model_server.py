"""Speaks to an OpenAI server as NeMo Gym's model servers do, and reads token ids from it as they do.

Two dialects: `0.4` (release 0.4.0: ids from the message, else from "token_id:N" strings and /tokenize) and `main`
(upstream after it: a complete bundle on the message, else `return_token_ids`, else as 0.4).
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

type Dialect = Literal["0.4", "main"]

_THOUGHTS = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_BUNDLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
_TOKENIZED = ("model", "messages", "tools", "chat_template_kwargs")


class RefusedError(Exception):
    """The server answered with an error."""


@dataclass(frozen=True)
class Answer:
    """One turn of the model."""

    message: dict[str, Any] | None  # as Gym sends it back; None: Gym drops it, for it says nothing
    tool_calls: list[dict[str, Any]]
    prompt: list[int]
    output: list[int]
    finish_reason: str
    headers: dict[str, str]

    @property
    def known(self) -> list[int]:
        """All tokens up to its end."""
        return self.prompt + self.output


@dataclass(frozen=True)
class ModelServer:
    """Calls one OpenAI server."""

    http: aiohttp.ClientSession
    url: str  # without /v1
    dialect: Dialect
    reasoning: bool  # uses_reasoning_parser of Gym's config

    async def ask(self, body: dict[str, Any]) -> Answer:
        """One chat completion.

        Raises:
            RefusedError: the server refuses, or leaves out what a model server needs.
        """
        body = {**body, "logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}
        if self.dialect == "main":
            body["return_token_ids"] = True
        document, headers = await self._post("/v1/chat/completions", body)
        choice = document["choices"][0]
        message = choice["message"]
        prompt, output, log_probs = await self._tokens(body, document, choice)
        if len(output) != len(log_probs):
            raise RefusedError(f"{len(output)} tokens, but {len(log_probs)} log-probabilities")
        calls = message.get("tool_calls") or []
        bundle = dict(zip(_BUNDLE, (prompt, output, log_probs), strict=True))
        return Answer(
            message=self._echo(message, calls, bundle),
            tool_calls=calls,
            prompt=prompt,
            output=output,
            finish_reason=str(choice["finish_reason"]),
            headers=headers,
        )

    async def _tokens(
        self, body: dict[str, Any], document: dict[str, Any], choice: dict[str, Any]
    ) -> tuple[list[int], list[int], list[float]]:
        message = choice["message"]
        if "prompt_token_ids" in message:
            if missing := [name for name in _BUNDLE if name not in message]:
                raise RefusedError(f"partial token metadata; missing: {missing}")
            bundle = tuple(message[name] for name in _BUNDLE)
            inline = (document.get("prompt_token_ids"), choice.get("token_ids"))
            if self.dialect == "main" and inline not in ((None, None), bundle[:2]):
                raise RefusedError("message-level token metadata disagrees with the response's token ids")
            return bundle
        content = (choice.get("logprobs") or {}).get("content")
        if content is None:
            raise RefusedError("no log-probabilities in the answer")
        output = [int(entry["token"].removeprefix("token_id:")) for entry in content]
        log_probs = [float(entry["logprob"]) for entry in content]
        if self.dialect == "main" and document.get("prompt_token_ids") is not None:
            return document["prompt_token_ids"], output, log_probs
        tokenized, _ = await self._post("/tokenize", {name: body[name] for name in _TOKENIZED if name in body})
        return tokenized["tokens"], output, log_probs

    def _echo(
        self, message: dict[str, Any], calls: list[dict[str, Any]], bundle: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The message after its way through the Responses API and back."""
        content = message.get("content") or ""
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        if reasoning and not self.reasoning:
            raise RefusedError("reasoning in an answer, but uses_reasoning_parser is off")
        if reasoning:
            content = f"<think>{reasoning}</think>{content}"
        if not content and not calls:
            return None
        echo: dict[str, Any] = {"role": "assistant", "content": content or None, "tool_calls": calls, **bundle}
        if self.reasoning and content:
            thoughts = _THOUGHTS.findall(content)
            echo["content"] = _THOUGHTS.sub("", content)
            if thoughts:
                echo["reasoning_content"] = echo["reasoning"] = thoughts[0]
        return echo

    async def _post(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        async with self.http.post(self.url + path, json=body) as response:
            if response.status != 200:
                raise RefusedError(f"{path}: {response.status}: {(await response.text())[:500]}")
            return await response.json(), {name.lower(): value for name, value in response.headers.items()}
