"""The trainer's accounts over random runs: each row that is drawn is trained once or reported with its reason, and the
sums agree.

The rollout worker is the real one, with its thread; rollouts are scripted, and the trainer is a loop of the test. What
each group must come to follows from the script alone, whatever the order in which things happen.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gymtrain_trainer.data.order import Place
from gymtrain_trainer.errors import DropReason, FailureKind
from gymtrain_trainer.progress import Loss
from gymtrain_trainer.rollouts import worker as worker_module
from gymtrain_trainer.rollouts.positions import REDRAWS
from gymtrain_trainer.rollouts.report import DROPPED, FAILED_GROUPS, FORKS, GIVEN_UP, MASKED
from tests.unit.trainer.trainer_runs import AGAIN, Attempt, Case, Run, ran
from tests.unit.trainer.trainer_script import agent_of

RUNS = 48


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Run]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "failure_pause", lambda failures: 0.0)
        with ThreadPoolExecutor(8) as pool:  # they mostly sleep
            yield list(pool.map(ran, map(Case.of, range(RUNS))))


def every_attempt(runs: Sequence[Run]) -> Iterator[tuple[Case, Attempt]]:
    return ((run.case, attempt) for run in runs for attempt in run.attempts)


def positions(place: Place) -> set[int]:
    """Those that are done."""
    return {*range(place.first_open), *place.done}


def test_each_row_is_trained_once_or_reported_once_with_its_reason(runs: list[Run]) -> None:
    for run in runs:
        ends: dict[int, list[DropReason | str]] = {}
        for attempt in run.attempts:
            ended = positions(attempt.place) - positions(attempt.start)
            trained = [one.group.id for step in attempt.used[: attempt.kept] for one in step]
            assert set(trained) <= ended
            for position in trained:
                ends.setdefault(position, []).append("trained")
            for position in ended - set(trained):
                reason = attempt.reason(position)
                assert reason is not None, f"{run.case}: the row at {position} is neither trained nor reported"
                ends.setdefault(position, []).append(reason)
        assert ends.keys() == positions(run.attempts[-1].place)
        assert all(len(found) == 1 for found in ends.values()), run.case


def test_no_attempt_has_a_row_twice(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        usable = [group.id for group, _ in attempt.usable]
        assert len(usable) == len(set(usable)), case
        assert not [position for position in usable if attempt.reason(position)], case


def test_a_row_that_a_checkpoint_has_is_not_drawn_again(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        assert not positions(attempt.start) & attempt.script.draws.keys(), case


def test_each_group_ends_as_its_rollouts_say(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        for group, draw in attempt.usable:
            assert (draw.dropped, draw.end(case.rules)) == (None, None), (case, group.id)
        for position, draws in attempt.script.draws.items():
            for draw in draws:
                by_guard = draw.dropped is DropReason.FOREIGN_WEIGHTS and not case.rules.gateway
                assert draw.dropped in (None, draw.end(case.rules)) or by_guard, (case, position)
            assert all(draw.dropped in (*AGAIN, DropReason.FOREIGN_WEIGHTS) for draw in draws[:-1]), (case, position)
            assert sum(draw.dropped in AGAIN for draw in draws) <= REDRAWS + 1


def test_dropped_groups_are_counted_by_reason_wherever_they_are_told(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        dropped, board = Counter(attempt.dropped), attempt.board
        assert attempt.report.dropped() == dropped, case
        assert board.tallies(DROPPED) == {str(reason): count for reason, count in dropped.items()}
        assert board.snapshot().dropped_groups == dropped.total()
        for reason in DropReason:
            assert attempt.reported(f"rollout/dropped_{reason}_total") == dropped[reason]
        if not case.rules.gateway:
            assert dropped[DropReason.FOREIGN_WEIGHTS] == attempt.discarded
        failed = Counter(
            agent_of(position)
            for position, draws in attempt.script.draws.items()
            for draw in draws
            if draw.dropped is DropReason.FAILED
        )
        assert board.tallies(FAILED_GROUPS) == failed


def test_rows_given_up_are_those_that_were_drawn_as_often_as_they_may_be(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        reasons = (attempt.reason(position) for position in attempt.script.draws)
        given_up = Counter(str(reason) for reason in reasons if reason in AGAIN)
        assert attempt.board.tallies(GIVEN_UP) == given_up, case


def test_every_lost_rollout_is_counted_once_with_its_kind_and_what_became_of_it(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        lost = Counter(attempt.script.lost)
        usable = {id(draw) for _, draw in attempt.usable}
        for position, draws in attempt.script.draws.items():
            for draw in draws:
                judged = id(draw) in usable or draw.dropped not in (None, DropReason.FOREIGN_WEIGHTS)
                if judged and draw.looked_at(case.rules):
                    cut = sum(one.cut and one.failure is None for one in draw.rollouts)
                    lost[Loss(agent_of(position), FailureKind.INFRASTRUCTURE.value, zeroed=False)] += cut
        assert attempt.board.lost() == +lost, case
        assert attempt.board.snapshot().failed_rollouts == attempt.script.failed_tries, case


def test_rollouts_are_counted_that_are_trained_or_wait(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        board = attempt.board
        left = [one for _, draw in attempt.usable for one in draw.left(case.rules)]
        forks = sum(sum(one.forks) for one in left) if case.rules.gateway else 0
        masked = sum(one.truncated for one in left) if case.masks else 0
        assert board.snapshot().rollouts == len(left), case
        assert sum(board.tallies(FORKS).values()) == attempt.reported("rollout/forks_total") == forks, case
        assert sum(board.tallies(MASKED).values()) == attempt.reported("rollout/masked_total") == masked, case


def test_a_groups_rewards_are_those_of_its_rollouts_and_the_zeros_that_count(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        for group, draw in attempt.usable:
            assert group.rewards == draw.rewards(case.rules), (case, group.id)
            assert all(sample.reward == group.rewards[sample.rollout] for sample in group.samples)


def test_every_token_that_a_rollout_of_a_trained_group_sampled_is_trained_in_one_sample(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        for group, draw in attempt.usable:
            wanted = [
                (number, [token for turn in part for token in one.turns[turn].output_ids])
                for number, one in enumerate(draw.left(case.rules))
                for part in one.samples
            ]
            trained = [
                (sample.rollout, [token for token, mask in zip(sample.token_ids, sample.mask, strict=True) if mask])
                for sample in group.samples
            ]
            assert trained == wanted, (case, group.id)


def test_samples_are_masked_and_dated_as_their_rollouts_were_sampled(runs: list[Run]) -> None:
    for case, attempt in every_attempt(runs):
        for group, draw in attempt.usable:
            left = draw.left(case.rules)
            for sample in group.samples:
                one = left[sample.rollout]
                assert (sample.truncated, sample.masked) == (one.truncated, case.masks and one.truncated)
                assert (sample.group_id, sample.agent) == (group.id, agent_of(group.id))
            for number, one in enumerate(left if case.rules.gateway else []):
                found = [sample.versions for sample in group.samples if sample.rollout == number]
                sampled = [{version for turn in part for version in one.versions[turn]} for part in one.samples]
                assert found == [tuple(sorted(versions)) for versions in sampled], (case, group.id)


@pytest.mark.torch
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_every_sample_of_a_step_counts_once_over_all_ranks(runs: list[Run], processes: int) -> None:
    """Ranks that have too little get samples of others once more, which count nothing."""
    pytest.importorskip("torch")
    from gymtrain_trainer.trl.advantages import LossSettings
    from gymtrain_trainer.trl.batches import make_step
    from gymtrain_trainer.trl.settings import Batch

    counted = 0
    for case, attempt in every_attempt(runs):
        for groups in ([one.group for one in step] for step in attempt.used):
            batch = Batch(per_device=2, accumulation=1, processes=processes, num_generations=2, token_budget=0)
            ranks, _ = make_step(groups, batch, LossSettings())
            assert len({len(micro_batches) for micro_batches in ranks}) == 1, "each rank has as many micro-batches"
            placed: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
            told: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
            for one in (one for micro_batches in ranks for one in micro_batches):
                for sample, advantage in zip(one.samples, one.advantages, strict=True):
                    key = (sample.group_id, sample.rollout, tuple(sample.token_ids))
                    placed[key] += 1
                    told[key] += advantage != 0
            wanted = {(s.group_id, s.rollout, tuple(s.token_ids)): s for group in groups for s in group.samples}
            assert placed.keys() == wanted.keys(), case
            means = {group.id: sum(group.rewards) / len(group.rewards) for group in groups}
            for key, sample in wanted.items():
                learns = not sample.masked and sample.reward != pytest.approx(means[sample.group_id])
                assert told[key] == learns, (case, key)
                counted += learns
    assert counted > 100, "or the test proves nothing"


def test_on_policy_no_step_uses_other_weights_than_its_own(runs: list[Run]) -> None:
    ages = {
        age
        for case, attempt in every_attempt(runs)
        if case.staleness == 0
        for step in attempt.used
        for one in step
        for age in one.staleness
    }
    assert ages == {0}


def test_only_where_a_group_was_overtaken_is_any_older_than_allowed(runs: list[Run]) -> None:
    """Without a gateway a group is as old as its first rollout. As long as groups are trained in the order of their
    weights, none was late, and none gave up its place."""
    oldest = dict.fromkeys(range(5), -1)
    for case, attempt in every_attempt(runs):
        newest = 0
        for one in (one for step in attempt.used for one in step):
            newest = max(newest, one.group.version)
            if case.per_step is None or case.rules.gateway or one.group.version < newest:
                break
            assert max(one.staleness) <= case.staleness, (case, one.group.id)
            oldest[case.staleness] = max(oldest[case.staleness], *one.staleness)
    assert oldest[1] == 1, "some are as old as they may be, or the test proves nothing"


def test_a_run_that_knows_its_end_leaves_no_row_open(runs: list[Run]) -> None:
    for run in runs:
        last = run.attempts[-1]
        if run.case.per_step is not None:
            assert (last.waiting, last.place.done) == ([], ()), run.case
            assert max(last.script.draws) < last.place.first_open


def test_all_that_can_happen_does(runs: list[Run]) -> None:
    """Or the other tests prove nothing."""
    attempts = [attempt for run in runs for attempt in run.attempts]
    assert {reason for attempt in attempts for reason in attempt.dropped} == set(DropReason)
    assert {(loss.kind, loss.zeroed) for attempt in attempts for loss in attempt.board.lost()} == {
        (FailureKind.INFRASTRUCTURE, False),
        *itertools.product((FailureKind.TIMEOUT, FailureKind.ENVIRONMENT), (False, True)),
    }
    assert {len(run.attempts) for run in runs} == {1, 2, 3}
    assert any(attempt.kept < len(attempt.used) for attempt in attempts), "steps are lost"
    assert any(attempt.start.done for attempt in attempts), "some begin with holes"
    assert any(attempt.waiting for attempt in attempts)
    assert any(attempt.board.tallies(GIVEN_UP) for attempt in attempts)
    sizes = [(len(group.rewards), group.samples[-1].rollout + 1) for one in attempts for group, _ in one.usable]
    assert any(rewards > rollouts for rewards, rollouts in sizes), "zeros without tokens"
