"""Evaluations as a table for people. Pure."""

from collections.abc import Sequence

from gymtrain_trainer.monitoring.evaluation_scores import EvaluationRow

_HEAD = ("step", "environment", "reward", "95 % interval", "pass@1", "pass@k", "tasks", "failed")


def evaluation_table(rows: Sequence[EvaluationRow]) -> str:
    """One line a row, columns aligned; `rows`: in the order of evaluations.csv."""
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cells(row: EvaluationRow) -> tuple[str, ...]:
    low, high = row.reward_low, row.reward_high
    interval = f"{low:.4f} to {high:.4f}" if low is not None and high is not None else ""
    numbers = [f"{one:.4f}" if one is not None else "" for one in (row.reward, row.pass_1, row.pass_k)]
    reward, once, best_of = numbers
    return (str(row.step), row.environment, reward, interval, once, best_of, str(row.tasks), str(row.failed))
