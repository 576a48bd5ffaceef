"""Claims at fixed rates: their latency, warm and cold, and what each costs the API server."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.sandboxes import ours, theirs
from benchmarks.sandboxes.kube import Kube
from benchmarks.sandboxes.load import Rated, Side, at_once, at_rate, close_all, until
from benchmarks.sandboxes.places import FAKE, IMAGE, REAL, Place, at, namespace
from benchmarks.sandboxes.sheet import Figure, own, total, writes_table

_PARTS = (50, 95, 99)
_AIMS = {50: 30.0, 99: 300.0}  # milliseconds, of warm claims


@dataclass(frozen=True)
class Step:
    """Claims at one rate, against a pool of that many."""

    rate: float
    count: int
    pool: int


_REAL_WARM = (Step(1, 15, 30), Step(20, 30, 30))
_REAL_COLD = (Step(1, 8, 0), Step(20, 20, 0))
_SIDES = ("ours", "agent-sandbox")
_FAKE_WARM = (Step(1, 8, 500), Step(20, 40, 500), Step(75, 375, 500))
_REUSED = 15


async def real(kube: Kube) -> list[Figure]:
    """Pods of the real kubelet."""
    reused = await _reused(kube)
    warm = {side: await _run(kube, side, REAL, _REAL_WARM) for side in _SIDES}
    cold = {side: await _run(kube, side, REAL, _REAL_COLD) for side in _SIDES}
    _print_writes("real pods, warm", {side: steps[-1] for side, steps in warm.items()} | {"ours, reused": reused})
    return [
        *_figures("warm", REAL, _REAL_WARM, warm),
        *_figures("cold", REAL, _REAL_COLD, cold),
        *_costs("writes, a claim and its end, reuse: Restart", {"ours": reused.per_claim(reused.claiming)}),
    ]


async def rate(kube: Kube) -> list[Figure]:
    """Pods of fake nodes, so that the kubelet is no limit."""
    async with at(kube, FAKE):
        warm = {side: await _run(kube, side, FAKE, _FAKE_WARM) for side in _SIDES}
    _print_writes("fake nodes, 75 a second", {side: steps[-1] for side, steps in warm.items()})
    return _figures("warm", FAKE, _FAKE_WARM, warm)


async def _run(kube: Kube, side: str, place: Place, steps: Sequence[Step]) -> list[Rated]:
    """One side, all steps; pools are of one size, so that they are filled once."""
    pool = steps[0].pool
    async with namespace(kube, f"bench-{side}") as name:
        if side == "ours":
            pools = [{"image": IMAGE, "replicas": pool}] if pool else []
            async with ours.broker(kube, name, place, warmPools=pools) as broker:
                return await _steps(kube, broker, steps)
        async with theirs.pool(kube, name, place, pool) as controller:
            return await _steps(kube, controller, steps)


async def _steps(kube: Kube, side: Side, steps: Sequence[Step]) -> list[Rated]:
    done: list[Rated] = []
    for step in steps:
        rated = await at_rate(kube, side, step.rate, step.count, step.pool)
        print(f"   {side.name}: {step} {_short(rated)}", flush=True)
        done.append(rated)
    return done


async def _reused(kube: Kube) -> Rated:
    """Ours with sandboxes that are restarted for the next task, as in a run that goes on.

    Twice as many are made as the pool wants, so that none is made while claims take from it; and all are held at once,
    so that none is taken twice: the kubelet restarts a young container at once only the first time.
    """

    def pools(replicas: int) -> list[dict[str, object]]:
        return [{"image": IMAGE, "replicas": replicas, "reuse": "Restart"}]

    token, all_ = secrets.token_hex(16), 2 * _REUSED

    async with namespace(kube, "bench-ours") as name:
        async with ours.broker(kube, name, REAL, token=token, warmPools=pools(all_)) as broker:
            await until(lambda: _has(broker, all_), f"{all_} sandboxes are ready")
        async with ours.broker(kube, name, REAL, token=token, warmPools=pools(_REUSED)) as broker:
            await until(lambda: _has(broker, all_), f"{all_} sandboxes are found again")
            before = await kube.writes()
            rated = await at_once(broker, _REUSED)
            await close_all(broker, rated.held)
            await until(lambda: _has(broker, all_), "all are ready for another task")
            rated.claiming = await kube.writes() - before
            print(f"   ours, reused: {_short(rated)}", flush=True)
            return rated


async def _has(side: Side, count: int) -> bool:
    return await side.ready() >= count


def _figures(kind: str, place: Place, steps: Sequence[Step], done: dict[str, list[Rated]]) -> list[Figure]:
    found: list[Figure] = []
    for number, step in enumerate(steps):
        rated = {side: all_[number] for side, all_ in done.items()}
        load = {side: one.load for side, one in rated.items()}
        what = f"{kind} claim, {place.name}, {step.rate:g}/s"
        for part in _PARTS:
            values = {side: one.milliseconds(part) for side, one in rated.items()}
            aim = _AIMS.get(part) if kind == "warm" else None
            found.append(Figure(f"{what}: p{part}", "ms", values, aim, load))
        if any(one.failures or (kind == "warm" and one.warm < one.claims) for one in rated.values()):
            for name, share in (("failed", _failed), ("found ready", _warm)):
                found.append(Figure(f"{what}: {name}", "%", {side: share(one) for side, one in rated.items()}))
    last = {side: all_[-1] for side, all_ in done.items()}
    claiming = {side: one.per_claim(one.claiming) for side, one in last.items()}
    ending = {side: one.per_claim(one.ending) for side, one in last.items()}
    what = "a warm claim and its refill" if kind == "warm" else "a cold claim"
    return [
        *found,
        *_costs(f"writes, {what}, {place.name}", claiming),
        Figure(f"writes, the end of it, {place.name}", "", {side: total(one) for side, one in ending.items()}),
    ]


def _costs(what: str, writes: dict[str, dict[str, float]]) -> list[Figure]:
    return [
        Figure(what, "", {side: total(one) for side, one in writes.items()}, 3),
        Figure(
            "of them not the scheduler's, not the node's, no events", "", {n: own(one) for n, one in writes.items()}
        ),
    ]


def _failed(rated: Rated) -> float:
    return 100 * sum(rated.failures.values()) / rated.claims


def _warm(rated: Rated) -> float:
    return 100 * rated.warm / rated.claims


def _short(rated: Rated) -> str:
    times = ", ".join(f"p{part} {rated.milliseconds(part):.0f} ms" for part in _PARTS)
    return f"{times}; {rated.warm} of {rated.claims} warm; failures {dict(rated.failures)}; load {rated.load:.1f}"


def _print_writes(what: str, rated: dict[str, Rated]) -> None:
    columns: dict[str, dict[str, float]] = {}
    for side, one in rated.items():
        columns[f"{side}: claim, refill"] = one.per_claim(one.claiming)
        if one.ending:
            columns[f"{side}: end"] = one.per_claim(one.ending)
    print(f"\n{what}\n\n{writes_table(columns)}\n", flush=True)
