"""The half on the real cluster: faults by seed, and what is found."""

from pathlib import Path

from tests.chaos.cluster_faults import FAULTS
from tests.chaos.cluster_world import cluster_world
from tests.chaos.harness import Outcome, Pace, chaos
from tests.support.install import OPERATOR_NAMESPACE
from tests.support.pod_cut import heal

_PACE = Pace(first=90.0, most_pause=40.0, settle=1800.0)


async def play(folder: Path, seed: int, faults: int, runs_at_once: int) -> Outcome:
    """Breaks that many things while runs come and go, and waits until all is as it should be."""
    outcome = Outcome(seed)
    heal()  # what an earlier one left that was killed
    async with (
        cluster_world(seed) as world,
        chaos(world, FAULTS, faults, runs_at_once, _PACE, outcome, folder),
    ):
        checks = world.checks
        outcome.notes.append(f"{checks.samples} samples of {checks.runs} runs checked, {checks.wrong} checks wrong")
        log = world.kubectl(OPERATOR_NAMESPACE).run("logs", "deployment/gymtrain-operator", check=False)
        (folder / "operator.log").write_text(log)
        if "Traceback (most recent call last)" in log:
            outcome.wrong.append(f"an unexpected error in the operator's log: {folder / 'operator.log'}")
    return outcome
