"""What the exactness check with NeMo Gym's servers finds, without any of them."""

import json
from collections.abc import Callable
from typing import Any, Literal

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gymtrain_api.ledger import LEDGER_PATH, LedgerEntry
from gymtrain_trainer.rollouts.answer import Turn
from tests.exactness.check import Report
from tests.exactness.gym.grammar import grammar
from tests.exactness.gym.report import Result, forks, table
from tests.exactness.gym.rollouts import Player, digest, judge
from tests.exactness.gym.rows import Rows

TOOL = {
    "name": "search",
    "parameters": {
        "properties": {"query": {"type": "string"}, "page": {"type": "integer"}},
        "required": ["query"],
    },
}
ROW: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "Find it."}], "tools": [TOOL]},
    "id": 1,
}
FIRST = Turn.of([1, 2], [3, 4], [-0.5, -0.5])
NEXT = Turn.of([1, 2, 3, 4, 5], [6], [-0.5])
REWRITTEN = Turn.of([1, 9], [6], [-0.5])


def judged(turns: list[Turn], *said: Literal["first", "exact", "forked"]) -> Report:
    """The report on one conversation of whose turns the ledger says `said`; on stock vLLM, if nothing is said."""
    report = Report()
    entries = {digest(turn): LedgerEntry(versions=["v"], history=one) for turn, one in zip(turns, said, strict=False)}
    judge(turns, entries if said else None, "here", report)
    return report


def test_a_prompt_that_begins_with_the_turn_before_is_exact() -> None:
    report = judged([FIRST, NEXT], "first", "exact")
    assert (report.passed, report.transitions, report.exact) == (True, 1, 1)


def test_a_fork_that_the_ledger_has_is_reported() -> None:
    report = judged([FIRST, REWRITTEN], "first", "forked")
    assert (report.passed, report.forked) == (True, 1)


def test_a_broken_prefix_that_the_ledger_calls_exact_is_wrong() -> None:
    report = judged([FIRST, REWRITTEN], "first", "exact")
    assert (report.passed, report.wrong) == (False, 1)
    assert "the 4 tokens of the turn before" in report.problems[0]


def test_a_later_turn_that_the_ledger_calls_a_first_one_is_wrong() -> None:
    assert judged([FIRST, NEXT], "first", "first").wrong == 1


def test_a_call_that_is_in_no_ledger_fails_the_check() -> None:
    report = judged([FIRST, NEXT], "first")
    assert (report.passed, report.not_in_ledger) == (False, 1)


def test_stock_servers_are_judged_by_their_tokens_alone() -> None:
    assert judged([FIRST, NEXT]).exact == 1
    assert judged([FIRST, REWRITTEN]).wrong == 1


def test_rows_take_turns_and_every_other_round_may_call_in_parallel() -> None:
    rows = Rows([ROW, {**ROW, "id": 2}])
    played = [rows.conversation(number, thinks=False) for number in range(4)]
    assert [row["id"] for row in played] == [1, 2, 1, 2]
    assert [row["responses_create_params"]["parallel_tool_calls"] for row in played] == [False, False, True, True]
    body = json.loads(played[0]["responses_create_params"]["metadata"]["extra_body"])
    assert body["structured_outputs"]["grammar"].startswith("root ::= (text space)? call\n")
    assert "metadata" not in ROW["responses_create_params"]


def test_the_grammar_asks_for_required_arguments_and_allows_one_of_the_others() -> None:
    rules = grammar([TOOL], thinks=True, most_calls=2).splitlines()
    assert rules[0] == "root ::= thought (text space)? call (space call){0,1}"
    assert rules[-1].endswith(
        r'"\"arguments\":" space "{" "\"query\":" space string ("," space ("\"page\":" space number))? "}" "}"'
    )


def test_an_argument_that_the_grammar_has_no_values_for_is_named() -> None:
    tool = {"name": "search", "parameters": {"properties": {"deep": {"type": "boolean"}}}}
    with pytest.raises(ValueError, match="tool search, argument deep: no grammar for type 'boolean'"):
        grammar([tool], thinks=False, most_calls=1)


def test_forks_are_read_from_the_gateways_metrics() -> None:
    text = '# TYPE x counter\ngymtrain_gateway_forks_total{reason="edited"} 3.0\ngymtrain_gateway_forks_created 1.0\n'
    assert forks(text) == {"edited": 3}


def run_answer(*turns: Turn) -> dict[str, Any]:
    """What an agent's /run answers."""
    output = [
        {
            "type": "function_call",
            "prompt_token_ids": list(turn.prompt_ids),
            "generation_token_ids": list(turn.output_ids),
            "generation_log_probs": list(turn.log_probs),
        }
        for turn in turns
    ]
    return {"reward": 0.0, "response": {"output": output}}


async def played(answer: Callable[[], web.Response]) -> Result:
    """One conversation with an agent that answers so, at a gateway that says that all is exact."""

    async def run(request: web.Request) -> web.Response:
        return answer()

    async def ledger(request: web.Request) -> web.Response:
        digests = (await request.json())["digests"]
        entries = {
            one: {"versions": ["v"], "history": "exact" if number else "first"} for number, one in enumerate(digests)
        }
        return web.json_response({"entries": entries})

    app = web.Application()
    app.add_routes([web.post("/run", run), web.post(LEDGER_PATH, ledger)])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        url = str(server.make_url("")).rstrip("/")
        report = await Player(http, url, url, thinks=False).play(Rows([ROW]), conversations=1, concurrent=1)
    return Result("search", "hermes", "hermes", "0.4", "gateway", stock=False, report=report)


async def test_an_agents_answer_is_read_as_the_trainer_reads_it() -> None:
    result = await played(lambda: web.json_response(run_answer(FIRST, NEXT)))
    assert result.passed, result.report.problems
    assert table([result]).splitlines()[-1] == ("| search | hermes | hermes | 0.4 | gateway | 1 | 2 | 1 | 1 | 0 | 0 |")


async def test_an_environment_that_fails_fails_the_check() -> None:
    result = await played(lambda: web.Response(status=500, text="no such tool"))
    assert not result.passed
    assert "no such tool" in result.report.problems[0]
