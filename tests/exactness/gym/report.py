"""What was measured, as a table."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.exactness.check import Report
from tests.exactness.gym.rollouts import FAILED

_FORKS = re.compile(r'^gymtrain_gateway_forks_total\{reason="(\w+)"\} (\S+)$', re.MULTILINE)
_HEAD = (
    "environment",
    "template",
    "parsers",
    "model server",
    "answers by",
    "conversations",
    "tool calls",
    "transitions",
    "exact",
    "reported forks",
    "silently wrong",
)


@dataclass(frozen=True)
class Result:
    """Conversations of one setting."""

    environment: str
    template: str
    parsers: str
    model_server: str
    answers_by: str
    stock: bool  # no gateway: for comparison, it can't fail
    report: Report

    @property
    def passed(self) -> bool:
        """Whether every transition was exact or reported as a fork, in conversations that all came to their end."""
        report = self.report
        return self.stock or (report.passed and report.tool_calls > 0 and not report.ended_early[FAILED])

    def cells(self) -> list[str]:
        """Of its line in the table."""
        report = self.report
        forks = ", ".join(f"{count} {reason}" for reason, count in sorted(report.fork_reasons.items()))
        numbers = [report.conversations, report.tool_calls, report.transitions, report.exact]
        return [
            *(self.environment, self.template, self.parsers, self.model_server, self.answers_by),
            *map(str, numbers),
            f"{report.forked} ({forks})" if forks else str(report.forked),
            str(report.wrong),
        ]


def table(results: Sequence[Result]) -> str:
    """The results in Markdown."""
    lines = [_HEAD, ["---"] * len(_HEAD), *(result.cells() for result in results)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def problems(results: Sequence[Result]) -> list[str]:
    """What went wrong where something did; what stock vLLM does is no problem of ours, but its failures are shown."""
    return [
        f"{result.environment}, {result.template}, {result.model_server}, {result.answers_by}: {problem}"
        for result in results
        for problem in result.report.problems
        if not result.stock or result.report.ended_early[FAILED]
    ]


def forks(metrics: str) -> Counter[str]:
    """Forks by reason in the text of a gateway's /metrics."""
    return Counter({reason: int(float(count)) for reason, count in _FORKS.findall(metrics)})
