"""Runs conversations and looks at each transition between turns: exact, reported as a fork, or silently wrong."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from gymtrain_api.ledger import LEDGER_PATH, LedgerAnswer, LedgerEntry, token_digest
from tests.exactness.conversations import Plan
from tests.exactness.model_server import Answer, ModelServer, RefusedError

_SHOWN = 10  # problems named in the report


@dataclass
class Report:
    """What was found."""

    conversations: int = 0
    calls: int = 0
    transitions: int = 0
    exact: int = 0
    forked: int = 0  # and reported as such
    wrong: int = 0  # the prefix broke, and nobody said so
    not_in_ledger: int = 0
    ended_early: Counter[str] = field(default_factory=Counter)
    fork_reasons: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    tool_calls: int = 0
    thoughts: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Notes one."""
        if len(self.problems) < _SHOWN:
            self.problems.append(text)

    @property
    def passed(self) -> bool:
        """Whether no transition was silently wrong and every call is in the ledger."""
        return not self.wrong and not self.not_in_ledger and self.transitions > 0


async def run(server: ModelServer, ledgers: Sequence[str], plan: Plan, conversations: int, concurrent: int) -> Report:
    """Plays all conversations. `ledgers`: URLs of all gateway pods; none for a server without a ledger."""
    report = Report()
    gate = asyncio.Semaphore(concurrent)

    async def play(number: int) -> None:
        async with gate:
            await _play(server, ledgers, plan, number, report)

    await asyncio.gather(*(play(number) for number in range(conversations)))
    return report


async def _play(server: ModelServer, ledgers: Sequence[str], plan: Plan, number: int, report: Report) -> None:
    messages = plan.opening(number)
    seen: Answer | None = None  # the last answer that Gym sends back
    report.conversations += 1
    for turn in range(plan.turns):
        try:
            answer = await server.ask(plan.request(messages))
        except RefusedError as error:
            early = "context length" if "context length" in str(error) else "refused"
            report.ended_early[early] += 1
            if early == "refused":
                report.problem(f"conversation {number}, turn {turn}: {error}")
            return
        report.calls += 1
        report.tool_calls += bool(answer.tool_calls)
        report.thoughts += bool(answer.message and answer.message.get("reasoning"))
        entry = await _ledger_entry(server.http, ledgers, answer) if ledgers else None
        if ledgers:
            _check_entry(report, entry, number, turn, first=seen is None)
        if seen is not None:
            _check_transition(report, seen, answer, entry, f"conversation {number}, turn {turn}")
        if answer.message is not None:
            messages.append(answer.message)
            seen = answer
        messages += plan.reply(turn, answer)


def _check_entry(report: Report, entry: LedgerEntry | None, number: int, turn: int, *, first: bool) -> None:
    if entry is None:
        report.not_in_ledger += 1
        report.problem(f"conversation {number}, turn {turn}: the call is in no ledger")
        return
    report.versions[",".join(entry.versions)] += 1
    if (entry.history == "first") != first:
        report.wrong += 1
        report.problem(f"conversation {number}, turn {turn}: the ledger says {entry.history}")


def _check_transition(report: Report, seen: Answer, answer: Answer, entry: LedgerEntry | None, where: str) -> None:
    report.transitions += 1
    holds = answer.prompt[: len(seen.known)] == seen.known
    said = answer.headers.get("x-gymtrain-history")
    if entry is not None and entry.history != said:
        report.wrong += 1
        report.problem(f"{where}: the ledger says {entry.history}, the header {said}")
    elif said == "forked":
        report.forked += 1
        report.fork_reasons[answer.headers.get("x-gymtrain-fork-reason", "")] += 1
    elif holds:
        report.exact += 1
    else:
        report.wrong += 1
        report.problem(f"{where}: the prompt does not begin with the {len(seen.known)} tokens of the turn before")


async def _ledger_entry(http: aiohttp.ClientSession, ledgers: Sequence[str], answer: Answer) -> LedgerEntry | None:
    digest = token_digest(answer.prompt, answer.output)
    for url in ledgers:
        async with http.post(url + LEDGER_PATH, json={"digests": [digest]}) as response:
            response.raise_for_status()
            found = LedgerAnswer.model_validate_json(await response.read()).entries.get(digest)
        if found is not None:
            return found
    return None
