"""The vLLM pods of the run, looked at in the background all the time.

Each pod is asked on its own, so that a slow one delays nobody. A pod that is too busy to answer keeps what it said
last, for a while; one that refuses connections is out at once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from gymtrain_gateway.asking import SlowError, ask_pod, ask_trainer, weight_label
from gymtrain_gateway.pod_choice import UNKNOWN, Admission, PodFacts, Statement, admit, newest
from gymtrain_gateway.resolve import resolve
from gymtrain_gateway.settings import Settings

_LOOK_SECONDS = 0.5
_TRUST_SECONDS = 15.0  # in what a silent pod or trainer said last

type Find = Callable[[str, int], Awaitable[list[str] | None]]


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
        """Looks until cancelled."""
        try:
            while True:
                await asyncio.gather(self._look_up(), self._look_at_trainer())
                for task in self._watches.values():
                    if task.done():
                        task.result()  # a watch ends by an error alone
                self._admit()
                await asyncio.sleep(_LOOK_SECONDS)
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
        """The version that the pod answers with, asked anew: of the pod, or of the trainer where it can't say it."""
        facts = self._facts.get(url)
        if facts is not None and facts.label is not None:
            return await weight_label(self._http, url)
        statement = await self._look_at_trainer_anew()
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
                self._facts[url] = PodFacts(answers=False, trouble="was not asked yet")
                self._watches[url] = asyncio.create_task(self._watch(url))

    async def _watch(self, url: str) -> None:
        while True:
            await self._ask(url)
            self._admit()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _ask(self, url: str) -> None:
        try:
            facts = await ask_pod(self._http, url, self._facts.get(url), adapters=self._settings.rules.adapters)
        except SlowError:
            silent = time.monotonic() - self._asked.get(url, float("-inf"))
            if silent > _TRUST_SECONDS:
                self._facts[url] = PodFacts(answers=False, trouble=f"said nothing for {_TRUST_SECONDS:.0f} s")
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

    async def _look_at_trainer_anew(self) -> Statement | None:
        """One look that began after this call; callers at the same time share it."""
        running = self._trainer_look
        if running is not None and not running.done():
            await asyncio.shield(running)
        if self._trainer_look is running:
            self._trainer_look = asyncio.create_task(self._look_at_trainer())
        assert self._trainer_look is not None
        return await asyncio.shield(self._trainer_look)

    def _admit(self) -> None:
        self.admissions = admit(self._facts, self._statement, self._settings.rules)
        self.changed()
