"""The prompt of a chat completion: vLLM's template, with the exact tokens of earlier turns in it.

`Prompter` makes it; `UsedPrompts` remembers those of recent calls.
"""

import asyncio
import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gymtrain_api.ledger import token_digest
from gymtrain_gateway.errors import BadCallError, PodFailedError, RefusedError, TooLateError
from gymtrain_gateway.history import PastTurn, Said, chain, past_turns, said, without_ids
from gymtrain_gateway.lru import LRU
from gymtrain_gateway.splice import Fork, continues, dropped, opening_of, splice, tail_of
from gymtrain_gateway.upstream import Deadline, Upstream

RENDER = "/v1/chat/completions/render"
DERENDER = "/v1/chat/completions/derender"
DETOKENIZE = "/detokenize"
_TEMPLATES = 256  # whose frame is kept
_RENDERED = 1 << 22  # tokens of first prompts that are kept; 16 MiB
_ANSWERS = 65_536  # known to say what their tokens say; some 16 MiB
_PROMPT_END = 64  # tokens of a prompt that matter to how its answer is read: they may open a block of reasoning


@dataclass(frozen=True)
class Prompt:
    """What to generate from."""

    request: dict[str, Any]  # vLLM's own generate request, with its own token ids
    tokens: list[int]  # that replace them
    history: Literal["first", "exact", "forked"]
    fork: Fork | None = None


@dataclass(frozen=True)
class _Frame:
    """What a template writes around an answer."""

    opening: list[int]
    tail: list[int]


class FirstPrompts:
    """Renders of conversations without an earlier answer: the rollouts of a group begin with the same one, and one call
    serves them all. vLLM's API server, one Python process, takes as long for a render as for a short answer."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: LRU[str, dict[str, Any]] = LRU(_RENDERED, weight=lambda rendered: len(rendered["token_ids"]))
        self._asked: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def render(self, pod: str, plain: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """vLLM's generate request for `plain`, to be read and not changed.

        Raises:
            CallError: vLLM refuses the messages, or the pod fails.
        """
        key = hashlib.blake2b(json.dumps([pod, plain], sort_keys=True).encode(), digest_size=16).hexdigest()
        if (known := self._known.get(key)) is not None:
            return known
        if (asked := self._asked.get(key)) is not None:
            try:
                return await asyncio.shield(asked)
            except (PodFailedError, TooLateError):
                return await self._ask(pod, plain, deadline)  # that call's failure, and its deadline
        self._asked[key] = asked = asyncio.create_task(self._ask(pod, plain, deadline))
        asked.add_done_callback(lambda done: self._end(key, done))
        return await asyncio.shield(asked)

    async def _ask(self, pod: str, plain: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        rendered = await self._upstream.ask(pod, RENDER, plain, deadline)
        rendered["token_ids"] = array("I", map(int, rendered["token_ids"]))
        rendered.pop("request_id", None)  # of one request; vLLM names each anew where none is given
        return rendered

    def _end(self, key: str, done: asyncio.Task[dict[str, Any]]) -> None:
        del self._asked[key]
        # Images and the like are large; and an error counts for those alone that asked meanwhile.
        if not done.cancelled() and done.exception() is None and not done.result().get("features"):
            self._known.put(key, done.result())


class Prompter:
    """Makes prompts on a pod."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._firsts = FirstPrompts(upstream)
        self._frames: LRU[str, _Frame] = LRU(_TEMPLATES)
        self._same: LRU[str, bool] = LRU(_ANSWERS)

    async def prepare(self, pod: str, body: Mapping[str, Any], deadline: Deadline) -> Prompt:
        """The prompt of `body`, whose messages may carry token ids.

        Raises:
            CallError: vLLM refuses the messages, or the pod fails.
        """
        answers = past_turns(body["messages"])
        plain = plain_request(body)
        if not answers:
            rendered = await self._firsts.render(pod, plain, deadline)
            return Prompt(rendered, list(rendered["token_ids"]), "first")
        rendered = await self._upstream.ask(pod, RENDER, plain, deadline)
        full = [int(token) for token in rendered["token_ids"]]
        if continues(full, answers[-1].known):
            return Prompt(rendered, full, "exact")
        spliced = await self._spliced(pod, plain, full, answers, deadline, features=bool(rendered.get("features")))
        if isinstance(spliced, Fork):
            return Prompt(rendered, full, "forked", spliced)
        return Prompt(rendered, spliced, "exact")

    def remember(self, prompt: Sequence[int], output: Sequence[int], message: Mapping[str, Any]) -> None:
        """Notes what vLLM's parsers made of an answer, so that the next turn needn't ask them again."""
        self._same.put(_same_key(prompt, output, said(message)), value=True)

    async def _spliced(
        self,
        pod: str,
        plain: dict[str, Any],
        full: list[int],
        answers: list[PastTurn],
        deadline: Deadline,
        *,
        features: bool,
    ) -> list[int] | Fork:
        if features:
            return Fork("multimodal", "images and similar parts have positions that other tokens would shift")
        linked = chain(answers)
        last = linked[-1]
        upto = plain["messages"][: last.index + 1]
        try:
            frame = await self._frame(pod, plain, deadline)
            head, same = await asyncio.gather(
                self._render(pod, plain, upto, deadline),
                asyncio.gather(*(self._says(pod, plain, turn, frame.tail, deadline) for turn in linked)),
            )
            if not all(same):
                index = linked[same.index(False)].index
                return Fork("edited", f"message {index} is not what the model's tokens say")
            spliced = splice(full, head, linked, frame.tail, frame.opening)
            if isinstance(spliced, Fork):
                return spliced
            text = await self._upstream.ask(pod, DETOKENIZE, {"model": plain.get("model"), "tokens": head}, deadline)
        except RefusedError as error:
            return Fork("refused", f"vLLM can't render the history on its own: {error}")
        return dropped(str(text["prompt"]), linked) or spliced

    async def _render(
        self,
        pod: str,
        plain: Mapping[str, Any],
        messages: list[dict[str, Any]],
        deadline: Deadline,
        *,
        ask: bool = False,
    ) -> list[int]:
        body = {**plain, "messages": messages, "add_generation_prompt": ask, "continue_final_message": False}
        return [int(token) for token in (await self._upstream.ask(pod, RENDER, body, deadline))["token_ids"]]

    async def _frame(self, pod: str, plain: Mapping[str, Any], deadline: Deadline) -> _Frame:
        """What this template writes around an answer: known from two conversations that differ in the answer alone,
        and from one that asks for an answer."""
        parts = [plain.get(name) for name in ("model", "chat_template", "chat_template_kwargs")]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
        frame = self._frames.get(key)
        if frame is None:
            small = {name: value for name, value in plain.items() if name not in ("tools", "tool_choice")}
            question = {"role": "user", "content": "a"}
            one, other = ([question, {"role": "assistant", "content": answer}] for answer in ("b", "c"))
            answered, differently, closed, asked = await asyncio.gather(
                self._render(pod, small, one, deadline),
                self._render(pod, small, other, deadline),
                self._render(pod, small, [question], deadline),
                self._render(pod, small, [question], deadline, ask=True),
            )
            frame = _Frame(opening_of(asked, closed), tail_of(answered, differently))
            self._frames.put(key, frame)
        return frame

    async def _says(self, pod: str, plain: dict[str, Any], turn: PastTurn, tail: list[int], deadline: Deadline) -> bool:
        """Whether the message of an answer says what its tokens say, as vLLM's own parsers read them."""
        wanted = said(turn.message)
        key = _same_key(turn.prompt, turn.output, wanted)
        if self._same.get(key):  # as made or read for an earlier turn: a long conversation isn't read again at each one
            return True
        whole = turn.output[:-1] if tail and turn.output[-1:] == tail[:1] else turn.output
        same = await self._read(pod, plain, turn.prompt, whole, deadline) == wanted
        if not same and len(whole) == len(turn.output):
            # Models may end a turn by another token than the template's.
            same = await self._read(pod, plain, turn.prompt, turn.output[:-1], deadline) == wanted
        if same:
            self._same.put(key, value=True)
        return same

    async def _read(
        self, pod: str, plain: dict[str, Any], prompt: list[int], output: list[int], deadline: Deadline
    ) -> Said:
        if not output:
            return Said("", ())
        choice = {"index": 0, "token_ids": output, "finish_reason": "stop"}
        response = {"request_id": "history", "choices": [choice], "prompt_token_ids": prompt}
        request = derender_request(plain, response, prompt)
        message = (await self._upstream.ask(pod, DERENDER, request, deadline))["choices"][0]["message"]
        if plain.get("parallel_tool_calls") is False:
            message["tool_calls"] = (message.get("tool_calls") or [])[:1]
        return said(message)


def _same_key(prompt: Sequence[int], output: Sequence[int], words: Said) -> str:
    text = hashlib.sha256(repr(words).encode(errors="surrogatepass")).hexdigest()
    return f"{token_digest(prompt[-_PROMPT_END:], output)} {text}"


def plain_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion request as vLLM takes it, without token ids.

    Raises:
        BadCallError: it has no messages.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadCallError("messages: expected a list of objects")
    return {**body, "messages": without_ids(messages), "stream": False}


def derender_request(plain: Mapping[str, Any], response: Mapping[str, Any], prompt: list[int]) -> dict[str, Any]:
    """Body of POST /v1/chat/completions/derender."""
    return {
        "model": plain.get("model"),
        "generate_response": response,
        "prompt_tokens": len(prompt),
        "prompt_token_ids": prompt,
        "chat_request": plain,
    }


class UsedPrompts:
    """Prompts of recent chat completions, for clients that ask /tokenize for what they were."""

    def __init__(self, capacity: int) -> None:
        self._tokens: LRU[str, array[int]] = LRU(capacity, weight=len)

    @property
    def held(self) -> int:
        """Tokens kept."""
        return self._tokens.held

    def note(self, body: Mapping[str, Any], prompt: Sequence[int]) -> None:
        """Remembers the prompt of one chat completion."""
        self._tokens.put(prompt_key(body), array("I", prompt))

    def find(self, body: Mapping[str, Any]) -> list[int] | None:
        """The prompt of a chat completion with these messages."""
        tokens = self._tokens.get(prompt_key(body))
        return None if tokens is None else list(tokens)


def prompt_key(body: Mapping[str, Any]) -> str:
    """Digest of all in a request that makes the prompt. The last answer's tokens have those of earlier ones in them."""
    messages = body["messages"]
    last: Mapping[str, Any] = next((one for one in reversed(messages) if one.get("prompt_token_ids")), {})
    parts = [
        last.get("prompt_token_ids"),
        last.get("generation_token_ids"),
        without_ids(messages),
        body.get("tools"),
        body.get("chat_template_kwargs"),
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
