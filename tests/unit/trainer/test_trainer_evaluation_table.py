"""Evaluations as people read them at the end of a run that trains nothing."""

from dataclasses import replace

from gymtrain_trainer.evaluation.table import evaluation_table
from gymtrain_trainer.monitoring.evaluation_scores import ALL, EvaluationRow

ROW = EvaluationRow(
    step=20,
    version="run:1:1",
    environment=ALL,
    tasks=16,
    rollouts=31,
    failed=1,
    zeroed=0,
    failures="timeout 1",
    reward=0.5,
    reward_low=0.25,
    reward_high=0.75,
    pass_1=0.4,
    pass_k=0.6,
    k=2,
    tokens=8.0,
    truncated=0.0,
    seconds=1.0,
    time=0.0,
)


def test_the_table_has_a_line_a_row_with_its_columns_aligned() -> None:
    other = replace(ROW, step=3, environment="math", reward=None, reward_low=None, reward_high=None, pass_k=None)
    assert evaluation_table([ROW, other]).splitlines() == [
        "step  environment  reward  95 % interval     pass@1  pass@k  tasks  failed",
        "20    (all)        0.5000  0.2500 to 0.7500  0.4000  0.6000  16     1",
        "3     math                                   0.4000          16     1",
    ]
