"""Which weights sampled a rollout, by what the ledgers say."""

from collections.abc import Sequence

import pytest

from gymtrain_api.ledger import LedgerEntry, token_digest
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.rollouts.answer import Answer, Turn
from gymtrain_trainer.rollouts.origins import Rollout, digests_of, rollouts_of
from gymtrain_trainer.rollouts.samples import conversations
from gymtrain_trainer.weights import SyncNumbers
from tests.unit.trainer.trainer_gateway import entry

FIRST, SECOND = Turn.of([1, 2], [3], [-0.5]), Turn.of([1, 2, 3, 9], [4], [-0.5])
ANSWER = Answer([FIRST, SECOND], 1.0, "", truncated=False)


def numbering() -> SyncNumbers:
    made = SyncNumbers("run", 2)
    for number in range(1, 8):
        made.sent(f"run:2:{number}")
    return made


def origins(first: Sequence[LedgerEntry], second: Sequence[LedgerEntry], floor: int = 1) -> Rollout:
    digests = [token_digest(turn.prompt_ids, turn.output_ids) for turn in (FIRST, SECOND)]
    entries = {digest: found for digest, found in zip(digests, (first, second), strict=True) if found}
    (rollout,) = rollouts_of([ANSWER], entries, numbering(), floor)
    return rollout


def reason(first: Sequence[LedgerEntry], second: Sequence[LedgerEntry], floor: int = 1) -> DropReason:
    with pytest.raises(GroupDroppedError) as dropped:
        origins(first, second, floor)
    return dropped.value.reason


def test_the_oldest_version_of_all_turns_is_the_rollouts() -> None:
    rollout = origins([entry("run:2:5")], [entry("run:2:4", "run:2:6", history="exact")])
    assert rollout.version == 4
    assert [origin.versions for origin in rollout.origins] == [(5,), (4, 6)]


def test_a_turn_that_nobody_knows_drops_the_group() -> None:
    assert reason([entry("run:2:5")], []) is DropReason.NO_LEDGER_ENTRY


@pytest.mark.parametrize("label", ["run:1:5", "other:2:5", "default", "run:2:x"])
def test_other_weights_than_this_attempts_drop_the_group(label: str) -> None:
    assert reason([entry("run:2:5")], [entry("run:2:5", label)]) is DropReason.FOREIGN_WEIGHTS


def test_a_turn_that_vllm_cut_off_makes_the_rollout_aborted() -> None:
    assert origins([entry("run:2:5")], [entry("run:2:5", finish="abort")]).aborted
    assert not origins([entry("run:2:5")], [entry("run:2:5")]).aborted


def test_a_call_that_another_pod_finished_is_not_aborted() -> None:
    assert not origins([entry("run:2:5")], [entry("run:2:5", finish="abort"), entry("run:2:5")]).aborted


def test_what_only_weights_from_before_the_group_sampled_is_stale() -> None:
    assert reason([entry("run:2:5")], [entry("run:2:2")], floor=3) is DropReason.STALE


def test_an_old_entry_of_the_same_tokens_in_another_pod_does_not_count() -> None:
    rollout = origins([entry("run:2:5")], [entry("run:2:1"), entry("run:2:6", history="exact")], floor=3)
    assert rollout.origins[1].versions == (6,)
    rollout = origins([entry("run:2:5")], [entry("run:2:1", "run:2:6", history="exact")], floor=3)
    assert rollout.origins[1].versions == (6,)
    rollout = origins([entry("run:2:5")], [entry("run:1:9"), entry("run:2:6", history="exact")], floor=3)
    assert rollout.origins[1].versions == (6,)


def test_a_turn_cut_at_the_token_limit_makes_the_rollout_truncated() -> None:
    assert not origins([entry("run:2:5")], [entry("run:2:5")]).truncated
    assert origins([entry("run:2:5", finish="length")], [entry("run:2:5")]).truncated


def test_a_fork_parts_the_conversation_and_is_counted() -> None:
    forked = origins([entry("run:2:5")], [entry("run:2:5", history="forked")])
    assert (forked.forks, [len(part) for part in conversations(forked)]) == (1, [1, 1])
    exact = origins([entry("run:2:5")], [entry("run:2:5", history="exact")])
    assert (exact.forks, [len(part) for part in conversations(exact)]) == (0, [2])


def test_a_conversation_anew_within_a_rollout_is_parted_but_no_fork() -> None:
    anew = origins([entry("run:2:5")], [entry("run:2:5", history="first")])
    assert (anew.forks, [len(part) for part in conversations(anew)]) == (0, [1, 1])


def test_equal_calls_of_a_group_are_asked_for_once() -> None:
    assert len(digests_of([ANSWER, ANSWER])) == 2


def test_what_the_gateway_says_of_a_calls_sampling_is_known_of_its_turn() -> None:
    plain = entry("run:2:5")
    told = entry("run:2:5", history="exact", constrained=True, replaced=["top_k", "seed"])
    first, second = origins([plain], [told, entry("run:2:5", history="exact", replaced=["seed", "min_p"])]).origins
    assert (first.constrained, first.replaced) == (False, ())
    assert (second.constrained, second.replaced) == (True, ("top_k", "seed", "min_p"))
