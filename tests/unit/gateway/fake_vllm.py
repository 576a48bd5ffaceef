"""A vLLM pod without a model: the routes that the gateway uses, a template, a tokenizer of characters.

Every character has two tokens. The template writes the first; the model samples the second, as real models sample
tokens that a tokenizer would not choose. So a rendered history never has the tokens that were used.
"""

import asyncio
from collections import deque
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

END, START = 0, 1
_SAMPLED = 100_000
_CONTEXT = 4096
_DEFAULT_MAX_TOKENS = 16  # of vLLM's SamplingParams: left out where they are written, and not taken for it where read


def tokens(text: str, *, sampled: bool = False) -> list[int]:
    """The tokens of `text`."""
    return [ord(character) + (_SAMPLED if sampled else 10) for character in text]


def text_of(ids: list[int], *, special: bool = True) -> str:
    """The text of `ids`."""
    names = {END: "<end>", START: "<start>"} if special else {END: "", START: ""}
    return "".join(
        names.get(one) or (chr(one - (_SAMPLED if one >= _SAMPLED else 10)) if one > 1 else "") for one in ids
    )


class FakeVLLM:
    """One pod."""

    def __init__(self, label: str | None = "run:1:1") -> None:
        self.label = label
        self.paused = False
        self.adapters: list[str] = []
        self.answers: deque[str] = deque()  # texts to generate; "ok" where empty
        self.cut = False  # answers end without the end-of-turn token
        self.strip_thoughts = False  # the template leaves reasoning of earlier turns out
        self.opening = "assistant\n"  # of an answer that is asked for; a history has "assistant\n"
        self.scale_out = True
        self.fail_with: int | None = None
        self.dies = False  # of a call to generate; it starts again, with the weights that it had at first
        self.hang = asyncio.Event()
        self.hang.set()
        self.calls: list[str] = []
        self.traceparents: dict[str, str] = {}  # of the last call of each route
        self.rendered: list[dict[str, Any]] = []  # bodies of render requests, and of completions
        self.derendered = 0  # answers
        self.parsers: dict[str, Any] | None = None  # what a render says of them; `sampling` is what they change in it
        self.grammar: dict[str, Any] | None = None  # structured outputs that vLLM makes of a tool choice or a format
        self.generated = 0
        self.request_ids: set[str] = set()  # of calls to generate, which vLLM refuses to run twice under one
        self.render_fails = 0  # that many times
        self.render_slowly = asyncio.Event()
        self.render_slowly.set()
        self.waiting = 0  # calls to generate that hang
        self.cancelled = 0
        self.server: TestServer | None = None

    @property
    def url(self) -> str:
        """Its address."""
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.port}"

    async def start(self) -> "FakeVLLM":
        """Listens on a free port."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/weight_info", self._weight_info),
                web.get("/is_paused", self._is_paused),
                web.get("/v1/models", self._models),
                web.post("/v1/chat/completions/render", self._render),
                web.post("/v1/chat/completions/derender", self._derender),
                web.post("/inference/v1/generate", self._generate),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.post("/v1/completions", self._completions),
            ]
        )
        self.server = TestServer(app, host="127.0.0.1")
        await self.server.start_server()
        return self

    async def stop(self) -> None:
        """Dies."""
        if self.server is not None:
            await self.server.close()

    def template(self, messages: list[dict[str, Any]], *, ask: bool) -> list[int]:
        """The tokens of a conversation."""
        last_user = max((number for number, one in enumerate(messages) if one["role"] == "user"), default=-1)
        ids: list[int] = []
        for number, message in enumerate(messages):
            thoughts = message.get("reasoning") or ""
            if thoughts and not (self.strip_thoughts and number < last_user):
                thoughts = f"<think>{thoughts}</think>"
            else:
                thoughts = ""
            calls = "".join(f"[{call['function']['name']}]" for call in message.get("tool_calls") or [])
            body = f"{message['role']}\n{thoughts}{message.get('content') or ''}{calls}"
            ids += [START, *tokens(body), END, *tokens("\n")]
        return [*ids, START, *tokens(self.opening)] if ask else ids

    async def _weight_info(self, request: web.Request) -> web.Response:
        if self.label is None:
            raise web.HTTPNotFound
        return web.json_response({"weight_version": self.label})

    async def _is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.paused})

    async def _models(self, request: web.Request) -> web.Response:
        models = [{"id": name, "max_model_len": _CONTEXT} for name in ["policy", *self.adapters]]
        return web.json_response({"data": models})

    async def _render(self, request: web.Request) -> web.Response:
        self._scale_out("render")
        self.traceparents["render"] = request.headers.get("traceparent", "")
        body = await request.json()
        self.rendered.append(body)
        await self.render_slowly.wait()
        if self.render_fails:
            self.render_fails -= 1
            return web.json_response({"error": {"message": "busy"}}, status=503)
        if body.get("temperature") == "hot":
            return web.json_response({"error": {"message": "temperature: no number"}}, status=400)
        ids = self.template(body["messages"], ask=body.get("add_generation_prompt", True))
        most = body.get("max_tokens", 100)
        sampling: dict[str, Any] = {} if most == _DEFAULT_MAX_TOKENS else {"max_tokens": most}
        if self.grammar is not None:
            sampling["structured_outputs"] = self.grammar
        parsers = dict(self.parsers or {})
        sampling |= parsers.pop("sampling", {})
        return web.json_response(
            parsers
            | {
                "request_id": f"rendered-{len(self.rendered)}",
                "token_ids": ids,
                "sampling_params": sampling,
                "features": None,
                "model": body.get("model"),
            }
        )

    async def _generate(self, request: web.Request) -> web.Response:
        self._scale_out("generate")
        self.traceparents["generate"] = request.headers.get("traceparent", "")
        body = await request.json()
        if self.fail_with is not None:
            return web.json_response({"error": {"message": "engine died"}}, status=self.fail_with)
        if self.dies:
            self.label = "default"
            assert request.transport is not None
            request.transport.abort()
        request_id = body.get("request_id", f"generated-{self.generated}-{len(self.request_ids)}")
        if request_id in self.request_ids:
            return web.json_response({"error": {"message": f"request {request_id} runs already"}}, status=400)
        self.request_ids.add(request_id)
        label = body["model"] if body["model"] in self.adapters else self.label
        self.waiting += 1
        try:
            await self.hang.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        text = self.answers.popleft() if self.answers else "ok"
        most = body["sampling_params"].get("max_tokens", _CONTEXT - len(body["token_ids"]))
        ids = (tokens(text, sampled=True) + ([] if self.cut else [END]))[:most]
        self.generated += 1
        versions = dict.fromkeys([label, self.label if label not in self.adapters else label])
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": "length" if self.cut or len(ids) == most else "stop",
            "stop_reason": None,
            "logprobs": {"content": [{"token_id": one, "logprob": -0.5, "top_logprobs": []} for one in ids]},
            "weight_versions": [{"version": one, "start": 0, "end": 1} for one in versions if one is not None],
        }
        if body.get("output_mode") == "text":
            assert body["sampling_params"].get("detokenize", True), "vLLM refuses this"
            choice["text"] = text_of(ids, special=False)
        return web.json_response({"request_id": "r", "choices": [choice]})

    async def _derender(self, request: web.Request) -> web.Response:
        self._scale_out("derender")
        self.traceparents["derender"] = request.headers.get("traceparent", "")
        self.derendered += 1
        body = await request.json()
        choice = body["generate_response"]["choices"][0]
        text = text_of(choice["token_ids"])
        thoughts, _, content = text.rpartition("</think>")
        calls = []
        reads_calls = body["chat_request"].get("tool_choice") != "none"
        if reads_calls and content.startswith("{"):  # a model writes a tool call otherwise than the template
            calls = [{"id": "c", "type": "function", "function": {"name": content.strip("{}"), "arguments": "{}"}}]
            content = ""
        message = {
            "role": "assistant",
            "content": content,
            "reasoning": thoughts.removeprefix("<think>") or None,
            "tool_calls": calls,
        }
        answer = {"index": 0, "message": message, "finish_reason": choice["finish_reason"], "logprobs": None}
        return web.json_response(
            {"id": "r", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [answer]}
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = self.template(body["messages"], ask=body.get("add_generation_prompt", True))
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": _CONTEXT})

    async def _detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": text_of((await request.json())["tokens"])})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("stream"):
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            for part in ("one", "two"):
                await answer.write(f"data: {part}\n\n".encode())
            await answer.write_eof()
            return answer
        self.calls.append("completions")
        self.rendered.append(body)
        await self.render_slowly.wait()
        if self.render_fails:
            self.render_fails -= 1
            return web.json_response({"error": {"message": "busy"}}, status=503)
        await self.hang.wait()
        choice = {"text": "ok", "prompt_token_ids": [1, 2], "token_ids": [3], "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    def _scale_out(self, route: str) -> None:
        self.calls.append(route)
        if not self.scale_out:
            raise web.HTTPForbidden(text='{"error": {"message": "Scale-out endpoints are disabled."}}')
