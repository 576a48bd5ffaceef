"""The ledger: what it keeps, and for how long."""

from typing import Any

import pytest

from gymtrain_api.ledger import LEDGER_PATH, CallTimes, LedgerAnswer, LedgerEntry, LedgerQuestion, token_digest
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_gateway import ledger as ledger_module
from gymtrain_gateway.ledger import Ledger, LedgerLimits
from gymtrain_gateway.settings import ledger_limits
from tests.support.world import spec
from tests.unit.gateway.conftest import Start
from tests.unit.gateway.fake_vllm import FakeVLLM


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


def times_of(ledger: Ledger, number: int) -> CallTimes:
    (entry,) = ask(ledger, number).entries.values()
    assert entry.times is not None
    return entry.times


def test_a_call_has_its_own_times_to_three_digits() -> None:
    clock = Clock()
    ledger = Ledger(LedgerLimits(8, 1e6), clock)
    for number, seconds in enumerate((1.0, 123.4)):
        clock.now = 1000.0 + number
        times = CallTimes(seconds=seconds, queued=0.1, sampled=0.75)
        ledger.note([0], [number], LedgerEntry(versions=["run:1:1"], times=times))
    clock.now = 2000.0
    first, second = times_of(ledger, 0), times_of(ledger, 1)
    assert (first.seconds, first.sampled, first.ended) == (1.0, 0.75, 1000.0)
    assert second.ended == 1001.0
    assert second.seconds == pytest.approx(123.4, rel=1e-3)
    assert second.queued == pytest.approx(0.1, rel=1e-3)


def test_when_a_call_ended_is_right_after_the_milliseconds_began_anew() -> None:
    clock = Clock()
    ledger = Ledger(LedgerLimits(8, 1e6), clock)
    clock.now = 2**32 / 1000 - 1.0
    ledger.note([0], [1], LedgerEntry(versions=["v"], times=CallTimes(seconds=1, queued=0, sampled=1)))
    clock.now += 5.0
    assert times_of(ledger, 1).ended == pytest.approx(2**32 / 1000 - 1.0, abs=0.01)


def test_calls_with_equal_tokens_have_the_times_of_the_last_one() -> None:
    ledger = Ledger(LedgerLimits(8, 1e6))
    for seconds in (1.0, 2.0):
        ledger.note([0], [1], LedgerEntry(versions=["v"], times=CallTimes(seconds=seconds, queued=0, sampled=0)))
    assert times_of(ledger, 1).seconds == 2.0


def test_a_call_longer_than_half_a_day_is_told_as_such() -> None:
    ledger = Ledger(LedgerLimits(8, 1e6))
    ledger.note([0], [1], LedgerEntry(versions=["v"], times=CallTimes(seconds=1e6, queued=0, sampled=1e6)))
    assert times_of(ledger, 1).seconds == 65_504


def test_nothing_of_a_call_is_left_when_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "ASKED", 2)
    clock = Clock()
    ledger = Ledger(LedgerLimits(calls=2, seconds=60.0), clock)
    for number in range(20):
        note(ledger, number, number, version=f"run:1:{number}")  # pushed out, asked for, and noted twice
        if number % 3:
            ask(ledger, number)
    assert len(ledger._kinds._numbers) == len(ledger._kinds._kinds) == len(ledger) == 3
    clock.now = 100.0
    note(ledger, 100)
    assert len(ledger._kinds._kinds) == len(ledger) == 3


async def test_the_gateway_says_where_a_calls_seconds_went(start: Start) -> None:
    bench = await start(FakeVLLM())
    status, body, _ = await bench.post(
        "/v1/chat/completions",
        {"model": "policy", "logprobs": True, "messages": [{"role": "user", "content": "q"}], "return_token_ids": True},
    )
    assert status == 200
    asked = token_digest(body["prompt_token_ids"], body["choices"][0]["token_ids"])
    (entry,) = bench.gateway.ledger.answer(LedgerQuestion(digests=[asked])).entries.values()
    assert entry.times is not None
    assert entry.times.queued >= 0
    assert entry.times.sampled > 0
    assert entry.times.queued + entry.times.sampled <= entry.times.seconds * 1.002
