"""The ledger: what it keeps, and for how long."""

from typing import Any

import pytest

from gymtrain_api.ledger import LEDGER_PATH, LedgerAnswer, LedgerEntry, LedgerQuestion, token_digest
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_gateway import ledger as ledger_module
from gymtrain_gateway.ledger import Ledger, LedgerLimits
from gymtrain_gateway.settings import ledger_limits
from tests.support.world import spec
from tests.unit.gateway.conftest import Start


def digest(number: int) -> str:
    return token_digest([0], [number])


def ask(ledger: Ledger, *numbers: int) -> LedgerAnswer:
    return ledger.answer(LedgerQuestion(digests=[digest(number) for number in numbers]))


def note(ledger: Ledger, *numbers: int, version: str = "run:1:1") -> None:
    for number in numbers:
        ledger.note([0], [number], LedgerEntry(versions=[version]))


def limits(**changes: Any) -> LedgerLimits:
    return ledger_limits(GymTrainingRunSpec.model_validate(spec(**changes)))


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_the_calls_of_open_groups_are_kept_however_many_others_are_made_meanwhile(start: Start) -> None:
    bench = await start(ledger=limits(rollout={"maxConcurrent": 1024}))
    ledger = bench.gateway.ledger
    note(ledger, 0)
    for number in range(1, 150_000):  # turns of other groups, half of which end meanwhile
        note(ledger, number)
        if number % 2:
            ask(ledger, number)
    status, answer, _ = await bench.post(LEDGER_PATH, {"digests": [digest(0)]})
    assert (status, list(answer["entries"]), answer["forgotten"]) == (200, [digest(0)], 0)


def test_what_was_asked_for_makes_room_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "ASKED", 2)
    ledger = Ledger(LedgerLimits(calls=2, seconds=60.0))
    note(ledger, 1)
    for number in (2, 3, 4):
        note(ledger, number)
        ask(ledger, number)
    assert list(ask(ledger, 2, 3, 4, 1).entries) == [digest(3), digest(4), digest(1)]
    assert ledger.forgotten == 0


def test_for_want_of_room_the_oldest_call_goes_and_is_counted() -> None:
    ledger = Ledger(LedgerLimits(calls=2, seconds=60.0))
    note(ledger, 1, 2, 3)
    answer = ask(ledger, 1, 2, 3)
    assert (list(answer.entries), answer.forgotten) == ([digest(2), digest(3)], 1)


def test_a_call_that_nobody_asks_for_ends_with_its_rollouts_deadline_and_not_before() -> None:
    clock = Clock()
    ledger = Ledger(LedgerLimits(calls=100, seconds=60.0), clock)
    note(ledger, 1)
    clock.now = 59.0
    note(ledger, 2)
    assert ledger.unasked == 2
    clock.now = 63.0
    note(ledger, 3)
    assert list(ask(ledger, 1, 2, 3).entries) == [digest(2), digest(3)]
    assert ledger.forgotten == 0, "nobody waits for it any more"


def test_a_question_may_be_put_twice() -> None:
    ledger = Ledger(LedgerLimits(calls=2, seconds=60.0))
    note(ledger, 1)
    assert list(ask(ledger, 1).entries) == list(ask(ledger, 1).entries) == [digest(1)]


def test_calls_with_equal_tokens_name_every_version_that_sampled_them() -> None:
    ledger = Ledger(LedgerLimits(calls=8, seconds=60.0))
    for label in ("run:1:9", "run:2:1", "run:2:1", "run:2:2"):
        note(ledger, 1, version=label)
    assert [entry.versions for entry in ask(ledger, 1).entries.values()] == [["run:2:1", "run:2:2"]]
    note(ledger, 1, version="run:2:3")
    assert [entry.versions for entry in ask(ledger, 1).entries.values()] == [["run:2:1", "run:2:2", "run:2:3"]]


def test_a_digest_that_is_none_is_unknown() -> None:
    assert Ledger(LedgerLimits(8, 60.0)).answer(LedgerQuestion(digests=["no hex"])).entries == {}


def test_the_answer_says_since_when_the_pod_keeps_its_ledger() -> None:
    clock = Clock()
    ledger = Ledger(LedgerLimits(8, 60.0), clock)
    clock.now = 5.0
    assert ask(ledger, 1).age_seconds == 5.0


@pytest.mark.parametrize(
    ("rollout", "config", "seconds"),
    [
        ({"timeoutSeconds": 100, "maxAttempts": 1}, {}, 2 * 100 + 30 + 120),
        ({"timeoutSeconds": 100, "maxAttempts": 3}, {}, 3 * (2 * 100 + 30) + 120),
        ({"timeoutSeconds": 100, "maxAttempts": 1, "maxConcurrent": 4}, {"num_generations": 16}, 5 * 100 + 30 + 120),
        (
            {"timeoutSeconds": 100, "maxAttempts": 1, "mode": "Verify", "verifyTimeoutSeconds": 10},
            {},
            2 * 120 + 30 + 120,
        ),
    ],
)
def test_an_entry_may_live_as_long_as_the_slowest_group(
    rollout: dict[str, Any], config: dict[str, Any], seconds: float
) -> None:
    trainer = {"config": {"max_steps": 1, **config}}
    assert limits(rollout=rollout, trainer=trainer).seconds == seconds


def test_the_room_grows_with_the_rollouts_that_are_open_at_once() -> None:
    assert limits().calls == 131_072
    assert limits(rollout={"maxConcurrent": 16_384}).calls == 512 * 16_384


def test_calls_with_equal_tokens_keep_what_any_of_them_was_sampled_with() -> None:
    ledger = Ledger(LedgerLimits(calls=10, seconds=60.0))
    ledger.note([1], [2], LedgerEntry(versions=["run:1:1"], constrained=True, replaced=("seed",)))
    ledger.note([1], [2], LedgerEntry(versions=["run:1:2"], replaced=("top_k",)))
    (entry,) = ledger.answer(LedgerQuestion(digests=[token_digest([1], [2])])).entries.values()
    assert (entry.constrained, entry.replaced) == (True, ("seed", "top_k"))
