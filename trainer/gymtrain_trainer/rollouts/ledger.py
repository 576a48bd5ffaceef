"""Asks the gateway's ledger which weights sampled each turn: every gateway pod, one question a group.

DNS is asked again each time, because gateway pods come and go. A pod that is gone took its ledger along: a turn that no
pod knows stays unknown, and its group is drawn again.

| what happens | how long it is asked again |
|---|---|
| all pods answered, a digest is unknown: a new pod may not be in DNS yet | 4 tries, 2 s in all |
| a pod didn't answer, or DNS knows none | 8 tries, 24 s of pauses in all |
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from gymtrain_api.ledger import LEDGER_PATH, MAX_DIGESTS, LedgerAnswer, LedgerEntry, LedgerQuestion
from gymtrain_api.wiring import GATEWAY_PORT
from gymtrain_trainer.dns import pod_urls
from gymtrain_trainer.errors import DropReason, GroupDroppedError

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
        find: Callable[[str, int], Awaitable[list[str]]] = pod_urls,
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

    async def entries(self, digests: Sequence[str], since: float | None = None) -> Entries:
        """What is known of each digest; every digest has at least one entry, its times by time.monotonic().

        `since`: time.monotonic() at which the first of the calls may have begun, None where that isn't known.

        Raises:
            GroupDroppedError: no pod that could be asked knows one of them.
        """
        wanted = list(dict.fromkeys(digests))
        pause = _AGAIN_SECONDS
        for number in range(1, _TRIES + 1):
            heard = await self._round(wanted)
            missing = [digest for digest in wanted if digest not in heard.found]
            if not missing:
                return heard.found
            if number == (_TRIES if heard.trouble else _UNKNOWN_TRIES):
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN_LIMIT_SECONDS)
        raise GroupDroppedError(
            DropReason.NO_LEDGER_ENTRY,
            f"{len(missing)} of {len(wanted)} model calls are in no gateway's ledger, so it is unknown which weights "
            f"sampled them ({len(heard.ages)} gateway pods answered"
            f"{'; ' + '; '.join(heard.trouble) if heard.trouble else ''}). {_what_to_do(heard, since)}",
        )

    async def _round(self, digests: list[str]) -> "_Heard":
        pods = await self._find(self._host, self._port)
        if not pods:
            return _Heard({}, [], 0, [f"{self._host} has no address"])
        answers = await asyncio.gather(*(self._ask(pod, digests) for pod in pods))
        told = [answer for answer in answers if isinstance(answer, LedgerAnswer)]
        found: dict[str, list[LedgerEntry]] = defaultdict(list)
        for answer in told:
            for digest, entry in answer.entries.items():
                found[digest].append(entry)
        return _Heard(
            found,
            [answer.age_seconds for answer in told],
            sum(answer.forgotten for answer in told),
            [answer for answer in answers if isinstance(answer, str)],
        )

    async def _ask(self, url: str, digests: list[str]) -> LedgerAnswer | str:
        """What one pod says, or why it said nothing."""
        assert self._session is not None
        found: dict[str, LedgerEntry] = {}
        answer = LedgerAnswer()
        try:
            for start in range(0, len(digests), MAX_DIGESTS):
                question = LedgerQuestion(digests=digests[start : start + MAX_DIGESTS])
                async with self._session.post(url + LEDGER_PATH, json=question.model_dump()) as response:
                    if response.status != 200:
                        return f"{url} answered {response.status}"
                    body, heard = await response.read(), time.monotonic()
                    answer = LedgerAnswer.model_validate_json(body)
                    began = heard - (answer.age_seconds or 0.0)
                    found |= {digest: entry.by_clock(began) for digest, entry in answer.entries.items()}
        except TimeoutError:
            return f"{url} didn't answer within {_ASK_SECONDS:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"{url}: {type(error).__name__}"
        except ValidationError as error:
            return f"{url} gave an invalid answer: {error.error_count()} errors"
        return answer.model_copy(update={"entries": found})


@dataclass(frozen=True)
class _Heard:
    """What all pods say."""

    found: dict[str, list[LedgerEntry]]
    ages: list[float | None]  # of the ledgers of those that answered, in seconds
    forgotten: int
    trouble: list[str]  # with the others


def _what_to_do(heard: _Heard, since: float | None) -> str:
    """Why calls are missing, as far as the pods tell, and what to set."""
    if heard.forgotten:
        return (
            f"The ledgers had no more room for {heard.forgotten} calls that are still wanted: add gateway pods "
            "(spec.gateway.replicas), each of which keeps the calls that it served, or let rollouts make fewer calls "
            "(max_steps of the agent)"
        )
    known = [age for age in heard.ages if age is not None]
    if known and since is not None and min(known) < time.monotonic() - since:
        return (
            f"A gateway pod began {min(known):.0f} s ago, and knows nothing from before: if they restart again and "
            "again, see why (kubectl get pods, kubectl describe pod), and give them more memory (spec.gateway.template)"
        )
    if heard.trouble or not heard.ages:
        return "See why gateway pods don't answer (kubectl get pods, kubectl logs)"
    return (
        "Calls that don't go through the gateway are in no ledger: the model server's base_url, which the run sets, "
        "must stay as it is, and agents must call that server"
    )
