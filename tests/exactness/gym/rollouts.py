"""Plays conversations through NeMo Gym's agents, and looks at each transition between turns of what they return.

Nothing is read but the answer of `POST /run`, by the trainer's own parser, and the gateway's ledger: what a trainer
has.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from gymtrain_api.ledger import LEDGER_PATH, LedgerAnswer, LedgerEntry, token_digest
from gymtrain_trainer.errors import AnswerError
from gymtrain_trainer.rollouts.answer import Turn, parse_answer
from tests.exactness.check import Report
from tests.exactness.gym.rows import Rows

FAILED = "failed"  # in Report.ended_early: the environment gave no answer


@dataclass(frozen=True)
class Player:
    """One agent."""

    http: aiohttp.ClientSession
    agent: str  # URL
    gateway: str | None  # URL; None: its model server asks vLLM itself
    thinks: bool

    async def play(self, rows: Rows, conversations: int, concurrent: int) -> Report:
        """Plays all conversations."""
        report = Report()
        gate = asyncio.Semaphore(concurrent)

        async def one(number: int) -> None:
            async with gate:
                await self._one(rows.conversation(number, thinks=self.thinks), f"conversation {number}", report)

        await asyncio.gather(*(one(number) for number in range(conversations)))
        return report

    async def _one(self, row: dict[str, Any], where: str, report: Report) -> None:
        report.conversations += 1
        async with self.http.post(self.agent + "/run", json=row) as response:
            text = await response.text()
            body: Any = await response.json() if response.status == 200 else None
        try:
            answer = parse_answer(body)
        except AnswerError as error:
            report.ended_early[FAILED] += 1
            report.problem(f"{where}: {error}: {text[:300]}")
            return
        report.ended_early["answer cut off"] += answer.truncated
        kinds = [item.get("type") for item in body["response"]["output"]]
        report.tool_calls += kinds.count("function_call")
        report.thoughts += kinds.count("reasoning")
        entries = await self._entries(answer.turns) if self.gateway else None
        judge(answer.turns, entries, where, report)

    async def _entries(self, turns: Sequence[Turn]) -> Mapping[str, LedgerEntry]:
        digests = [digest(turn) for turn in turns]
        async with self.http.post(f"{self.gateway}{LEDGER_PATH}", json={"digests": digests}) as response:
            response.raise_for_status()
            return LedgerAnswer.model_validate_json(await response.read()).entries


def digest(turn: Turn) -> str:
    """Of the model call of `turn`."""
    return token_digest(turn.prompt_ids, turn.output_ids)


def judge(turns: Sequence[Turn], entries: Mapping[str, LedgerEntry] | None, where: str, report: Report) -> None:
    """Adds the turns of one conversation to `report`. `entries`: the gateway's; None where there is no gateway."""
    for number, turn in enumerate(turns):
        entry = entries.get(digest(turn)) if entries is not None else None
        place = f"{where}, turn {number}"
        report.calls += 1
        if entry is not None:
            report.versions[",".join(entry.versions)] += 1
        elif entries is not None:
            report.not_in_ledger += 1
            report.problem(f"{place}: the call is in no ledger")
        if number == 0:
            if entry is not None and entry.history != "first":
                report.wrong += 1
                report.problem(f"{place}: the ledger says {entry.history}")
            continue
        _transition(turns[number - 1], turn, entry.history if entry else None, place, report)


def _transition(before: Turn, turn: Turn, reported: str | None, place: str, report: Report) -> None:
    known = before.prompt_ids + before.output_ids
    report.transitions += 1
    if reported == "forked":
        report.forked += 1
    elif turn.prompt_ids[: len(known)] == known and reported in ("exact", None):
        report.exact += 1
    else:
        report.wrong += 1
        report.problem(f"{place}: not the {len(known)} tokens of the turn before, and the ledger says {reported}")
