"""The vLLM pods of the run: found by DNS, and asked in the background all the time.

Each pod is asked on its own, so that a slow one delays nobody. A pod that is too busy to answer keeps what it said
last, for a while; one that refuses connections is out at once.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from pydantic import ValidationError

from gymtrain_api.wiring import WeightsHeld
from gymtrain_gateway.pod_choice import UNKNOWN, Admission, PodFacts, Statement, admit, newest
from gymtrain_gateway.settings import Settings

_PERIOD_SECONDS = 0.5  # between two looks
_SYNC_PERIOD_SECONDS = 0.1  # at a pod whose weights are synced, so that it gets calls again soon
_TRUST_SECONDS = 15.0  # in what a silent pod or trainer said last

_DNS_SECONDS = 5.0
_NO_ADDRESS = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))

_ANSWER_SECONDS = 5.0  # vLLM answers nothing while its engine works in the same process
_CONNECT_SECONDS = 2.0
_TIMEOUT = aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=_CONNECT_SECONDS)
HELD_PATH = "/weights/held"

type Find = Callable[[str, int], Awaitable[list[str] | None]]


async def resolve(host: str, port: int) -> list[str] | None:
    """URLs of all pods behind a headless Service, sorted.

    Empty where DNS says that there is none; None if it doesn't answer, and nothing is known.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_DNS_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return [] if error.errno in _NO_ADDRESS else None
    except (OSError, TimeoutError):
        return None
    addresses = {str(entry[4][0]) for entry in found}
    return sorted(f"http://{f'[{address}]' if ':' in address else address}:{port}" for address in addresses)


class SlowError(Exception):
    """No answer in time, but the pod is there: a busy engine looks like that."""


async def ask_pod(http: aiohttp.ClientSession, pod: str, known: PodFacts | None, *, adapters: bool) -> PodFacts:
    """Asks one pod. What never changes in a pod is not asked again.

    Raises:
        SlowError: the pod is too busy to answer.
    """
    try:
        label, paused = await asyncio.gather(
            _field(http, f"{pod}/weight_info", "weight_version"), _field(http, f"{pod}/is_paused", "is_paused")
        )
        models, length = (known.models, known.max_model_len) if known and known.answers else ((), None)
        if adapters or not models:
            models, length = await _models(http, pod)
    except (TimeoutError, aiohttp.ServerTimeoutError) as error:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return PodFacts(answers=False, trouble="doesn't answer: no connection")
        raise SlowError from error
    except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
        return PodFacts(answers=False, trouble=f"doesn't answer: {error or type(error).__name__}")
    label = None if label is None else str(label)
    return PodFacts(
        answers=True,
        paused_since=_paused_since(known, label) if paused else None,
        label=label,
        models=models,
        max_model_len=length,
    )


def _paused_since(known: PodFacts | None, label: str | None) -> float:
    """When the pause began that a pod is in now, as far as looks tell. With other weights it is another one than the
    last look met."""
    if known is None or known.paused_since is None or known.label != label:
        return time.monotonic()
    return known.paused_since


async def weight_label(http: aiohttp.ClientSession, pod: str) -> str | None:
    """The label of the weights that the pod holds now; None if it can't say it."""
    try:
        label = await _field(http, f"{pod}/weight_info", "weight_version")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
        return None
    return None if label is None else str(label)


async def ask_trainer(http: aiohttp.ClientSession, pod: str) -> Statement | None:
    """What the trainer says; None if this pod of it says nothing."""
    try:
        async with http.get(pod + HELD_PATH, timeout=_TIMEOUT) as response:
            if response.status != 200:
                return None
            held = WeightsHeld.model_validate_json(await response.read())
    except (TimeoutError, aiohttp.ClientError, OSError, ValidationError):
        return None
    return Statement(held.version, held.pods)


async def _field(http: aiohttp.ClientSession, url: str, name: str) -> object:
    """A field of a JSON answer; None if the release has no such route."""
    async with http.get(url, timeout=_TIMEOUT) as response:
        if response.status == 404:
            return None
        if response.status != 200:
            raise ValueError(f"{url} says {response.status}")
        return (await response.json(content_type=None))[name]


async def _models(http: aiohttp.ClientSession, pod: str) -> tuple[tuple[str, ...], int | None]:
    """Names that the pod serves, and the length of its context."""
    async with http.get(f"{pod}/v1/models", timeout=_TIMEOUT) as response:
        if response.status != 200:
            raise ValueError(f"{pod}/v1/models says {response.status}")
        models = (await response.json(content_type=None))["data"]
    lengths = [model["max_model_len"] for model in models if model.get("max_model_len")]
    return tuple(str(model["id"]) for model in models), min(lengths, default=None)


class Pods:
    """Knows every pod, and which may answer."""

    def __init__(self, settings: Settings, http: aiohttp.ClientSession, find: Find = resolve) -> None:
        self._settings = settings
        self._http = http
        self._find = find
        self._facts: dict[str, PodFacts] = {}
        self._asked: dict[str, float] = {}  # when a pod answered last
        self._statement: Statement | None = None
        self._stated = float("-inf")
        self._trainer = ""  # the pod of it that answered last
        self._trainer_look: asyncio.Task[Statement | None] | None = None
        self._watches: dict[str, asyncio.Task[None]] = {}
        self.admissions: dict[str, Admission] = {}
        self.changed: Callable[[], None] = lambda: None  # called after each look

    def admissible(self) -> list[str]:
        """Pods that may answer now."""
        return [url for url, admission in self.admissions.items() if admission.admissible]

    def reason(self) -> str:
        """Why no pod may answer."""
        if not self.admissions:
            return f"{self._settings.pods_host} has no address: no vLLM pod runs"
        reasons = {url: admission.reason for url, admission in sorted(self.admissions.items()) if admission.reason}
        return "; ".join(f"{url} {reason}" for url, reason in reasons.items())

    def facts(self, url: str) -> PodFacts | None:
        """What the pod said last."""
        return self._facts.get(url)

    def serves(self, url: str, version: str | None) -> bool:
        """Whether `version` is the name of an adapter that the pod serves."""
        facts = self._facts.get(url)
        return facts is not None and version in facts.models

    def request_for(self, url: str, version: str | None, body: dict[str, Any]) -> dict[str, Any]:
        """The request as this pod takes it: an adapter goes by the name of its version."""
        return {**body, "model": version} if self.serves(url, version) else body

    def failed(self, url: str, message: str) -> None:
        """A call found the pod dead: no further one goes there until it answers again."""
        if url in self._facts:
            self._facts[url] = PodFacts(answers=False, trouble=f"doesn't answer: {message}")
            self._admit()

    async def run(self) -> None:
        """Checks the pods until cancelled."""
        try:
            while True:
                await asyncio.gather(self._look_up(), self._look_at_trainer())
                for task in self._watches.values():
                    if task.done():
                        task.result()  # a watch ends by an error alone
                self._admit()
                await asyncio.sleep(_PERIOD_SECONDS)
        finally:
            for task in self._watches.values():
                task.cancel()
            await asyncio.gather(*self._watches.values(), return_exceptions=True)

    async def versions_since(self, url: str, version: str | None) -> list[str]:
        """What sampled a call that ends now on a pod that held `version` when it began, oldest first."""
        # An adapter's name doesn't change its meaning.
        lasting = not self._settings.rules.synced or self.serves(url, version)
        after = version if lasting else await self._version_now(url)
        return list(dict.fromkeys([version or UNKNOWN, after or UNKNOWN]))

    async def _version_now(self, url: str) -> str | None:
        """The version that the pod answers with now: asked of the pod, or of the trainer where the pod can't say it."""
        facts = self._facts.get(url)
        if facts is not None and facts.label is not None:
            return await weight_label(self._http, url)
        statement = await self._look_at_trainer_now()
        return statement.pods.get(url) if statement else None

    async def _look_up(self) -> None:
        urls = await self._find(self._settings.pods_host, self._settings.pods_port)
        if urls is None:  # DNS is away; the pods may well be there
            return
        for url in set(self._watches) - set(urls):
            self._watches.pop(url).cancel()
            self._facts.pop(url, None)
            self._asked.pop(url, None)
        for url in urls:
            if url not in self._watches:
                self._facts[url] = PodFacts(answers=False, trouble="hasn't been asked yet")
                self._watches[url] = asyncio.create_task(self._watch(url))

    async def _watch(self, url: str) -> None:
        while True:
            await self._ask(url)
            self._admit()
            admission = self.admissions.get(url)
            syncing = admission is not None and admission.syncing
            await asyncio.sleep(_SYNC_PERIOD_SECONDS if syncing else _PERIOD_SECONDS)

    async def _ask(self, url: str) -> None:
        try:
            facts = await ask_pod(self._http, url, self._facts.get(url), adapters=self._settings.rules.adapters)
        except SlowError:
            silent = time.monotonic() - self._asked.get(url, float("-inf"))
            if silent > _TRUST_SECONDS:
                self._facts[url] = PodFacts(answers=False, trouble=f"hasn't answered for {_TRUST_SECONDS:.0f} s")
            return
        self._facts[url] = facts
        self._asked[url] = time.monotonic()

    async def _look_at_trainer(self) -> Statement | None:
        """What it says now; a trainer that is silent keeps its last statement for a while, but says nothing."""
        if not self._settings.rules.synced:
            return None
        urls = await self._find(self._settings.trainer_host, self._settings.trainer_port) or []
        said = await self._ask_trainers([self._trainer] if self._trainer in urls else []) or (
            await self._ask_trainers(urls)
        )
        if said:
            latest = newest((one.version for one in said), self._settings.rules.run)
            label = str(latest) if latest else None
            self._statement = next((one for one in said if one.version == label), said[0])
            self._stated = time.monotonic()
            return self._statement
        if time.monotonic() - self._stated > _TRUST_SECONDS:
            self._statement = None
        return None

    async def _ask_trainers(self, urls: list[str]) -> list[Statement]:
        """What those of a training job's pods say that say something: the first one, as a rule."""
        answers = await asyncio.gather(*(ask_trainer(self._http, url) for url in urls))
        found = {url: one for url, one in zip(urls, answers, strict=True) if one is not None}
        self._trainer = next(iter(found), "")
        return list(found.values())

    async def _look_at_trainer_now(self) -> Statement | None:
        """One look that began after this call; callers at the same time share it."""
        running = self._trainer_look
        if running is not None and not running.done():
            await asyncio.shield(running)
        if self._trainer_look is running:
            self._trainer_look = asyncio.create_task(self._look_at_trainer())
        assert self._trainer_look is not None
        return await asyncio.shield(self._trainer_look)

    def _admit(self) -> None:
        self.admissions = admit(self._facts, self._statement, self._settings.rules, time.monotonic())
        self.changed()
