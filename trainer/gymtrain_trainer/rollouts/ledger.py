"""Asks the gateway's ledger which weights sampled each turn: every gateway pod, one question a group.

DNS is asked anew each time, because gateway pods come and go. A pod that is gone took its ledger along: a turn that no
pod knows stays unknown, and its group is drawn again.

| what happens | how long it is asked again |
|---|---|
| all pods answered, a digest is unknown: a new pod may not be in DNS yet | 4 tries, 2 s in all |
| a pod didn't answer, or DNS knows none | 8 tries, 24 s of pauses in all |
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from gymtrain_api.ledger import LEDGER_PATH, MAX_DIGESTS, LedgerAnswer, LedgerEntry, LedgerQuestion
from gymtrain_api.wiring import GATEWAY_PORT
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.weights.hosts import Pod, resolve

_TRIES = 8
_UNKNOWN_TRIES = 4
_AGAIN_SECONDS = 0.25  # doubled at each try
_AGAIN_LIMIT_SECONDS = 8.0
_ASK_SECONDS = 10.0  # of one question to one pod

type Entries = Mapping[str, Sequence[LedgerEntry]]  # what the pods say of each digest, one entry a pod


class Ledger:
    """The ledgers of all gateway pods; lives in one event loop."""

    def __init__(
        self,
        host: str,
        port: int = GATEWAY_PORT,
        find: Callable[[str, int], Awaitable[list[Pod]]] = resolve,
    ) -> None:
        """`host`: the headless Service of the gateway's pods."""
        self._host = host
        self._port = port
        self._find = find
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_SECONDS))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def entries(self, digests: Sequence[str]) -> Entries:
        """What is known of each digest; every digest has at least one entry.

        Raises:
            GroupDroppedError: no pod that could be asked knows one of them.
        """
        wanted = list(dict.fromkeys(digests))
        pause = _AGAIN_SECONDS
        for number in range(1, _TRIES + 1):
            found, pods, trouble = await self._round(wanted)
            missing = [digest for digest in wanted if digest not in found]
            if not missing:
                return found
            if number == (_TRIES if trouble else _UNKNOWN_TRIES):
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN_LIMIT_SECONDS)
        raise GroupDroppedError(
            DropReason.NO_LEDGER_ENTRY,
            f"{len(missing)} of {len(wanted)} model calls are in no gateway's ledger, so nobody knows which weights "
            f"sampled them ({pods} gateway pods answered{'; ' + '; '.join(trouble) if trouble else ''})",
        )

    async def _round(self, digests: list[str]) -> tuple[dict[str, list[LedgerEntry]], int, list[str]]:
        """Entries by digest, the number of pods that answered, and the trouble with the others."""
        pods = await self._find(self._host, self._port)
        if not pods:
            return {}, 0, [f"{self._host} has no address"]
        answers = await asyncio.gather(*(self._ask(pod, digests) for pod in pods))
        found: dict[str, list[LedgerEntry]] = defaultdict(list)
        for answer in answers:
            for digest, entry in answer.items() if isinstance(answer, dict) else ():
                found[digest].append(entry)
        trouble = [answer for answer in answers if isinstance(answer, str)]
        return found, len(pods) - len(trouble), trouble

    async def _ask(self, pod: Pod, digests: list[str]) -> dict[str, LedgerEntry] | str:
        """Entries of one pod, or why it gave none."""
        assert self._session is not None
        found: dict[str, LedgerEntry] = {}
        try:
            for start in range(0, len(digests), MAX_DIGESTS):
                question = LedgerQuestion(digests=digests[start : start + MAX_DIGESTS])
                async with self._session.post(pod.url + LEDGER_PATH, json=question.model_dump()) as response:
                    if response.status != 200:
                        return f"{pod.url} answered {response.status}"
                    found |= LedgerAnswer.model_validate_json(await response.read()).entries
        except TimeoutError:
            return f"{pod.url} didn't answer within {_ASK_SECONDS:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"{pod.url}: {type(error).__name__}"
        except ValidationError as error:
            return f"{pod.url} answered nonsense: {error.error_count()} errors"
        return found
