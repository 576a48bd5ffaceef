"""Stands in for a run's agents, and for the ledger of its gateway: `python -m benchmarks.open_rollouts.stand_in`.

| route | answers |
|---|---|
| POST /run | a rollout, after as many seconds as were told |
| POST /gymtrain/ledger | which weights sampled the calls: those of a rollout's start, then those of its end |
| POST /tell | takes the label of the weights, and how long rollouts take from now on |
| GET /stats | rollouts: begun, answered, open, and the most that were open since /tell last named seconds |
"""

import argparse
import asyncio
import json
import random
from dataclasses import dataclass, field

from aiohttp import web

from benchmarks.open_rollouts.answers import Answers
from benchmarks.open_rollouts.load import Load
from gymtrain_api.ledger import LEDGER_PATH, LedgerEntry
from gymtrain_api.wiring import GATEWAY_PORT
from gymtrain_trainer import open_files

_BACKLOG = 16_384


@dataclass
class StandIn:
    """All agents, and the gateway."""

    load: Load
    label: str = ""
    seconds: float = 0.0
    begun: int = 0
    open: int = 0
    most_open: int = 0
    _told: int = 0  # the first rollout since /tell named seconds
    # Never forgotten: a question that came too late is asked again.
    _ledger: dict[bytes, bytes] = field(default_factory=dict)
    _entries: dict[tuple[str, str], bytes] = field(default_factory=dict)  # as JSON

    def __post_init__(self) -> None:
        self.seconds = self.load.warm_seconds
        self._answers = Answers(self.load)

    def agents(self) -> web.Application:
        """Routes of the agents, and of the benchmark."""
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.post("/run", self._run), web.post("/tell", self._tell), web.get("/stats", self._stats)])
        return app

    def gateway(self) -> web.Application:
        """The ledger's route."""
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.post(LEDGER_PATH, self._ask)])
        return app

    async def _run(self, request: web.Request) -> web.Response:
        await request.read()
        number, began = self.begun, self.label
        self.begun += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self._seconds(number))
        finally:
            self.open -= 1
        for turn, digest in enumerate(self._answers.digests(number)):
            label = began if turn < self.load.turns / 2 else self.label
            self._ledger[digest] = self._entry(label, "exact" if turn else "first")
        return web.Response(body=self._answers.body(number), content_type="application/json")

    def _seconds(self, number: int) -> float:
        """That a rollout takes. Those that begin together don't end together: the first ones of a new speed, as many as
        are open at once, take ever longer, up to that."""
        grown = min(1.0, (number - self._told + 1) / self.load.rollouts)
        return self.seconds * grown * random.uniform(1 - self.load.jitter, 1 + self.load.jitter)  # noqa: S311 - no secret

    def _entry(self, label: str, history: str) -> bytes:
        if (label, history) not in self._entries:
            made = {"versions": [label], "history": history, "finish_reason": "stop"}
            self._entries[label, history] = LedgerEntry.model_validate(made).model_dump_json().encode()
        return self._entries[label, history]

    async def _ask(self, request: web.Request) -> web.Response:
        asked = json.loads(await request.read())["digests"]
        known = [(digest.encode(), self._ledger.get(bytes.fromhex(digest))) for digest in asked]
        entries = b",".join(b'"%b":%b' % (digest, entry) for digest, entry in known if entry is not None)
        body = b'{"entries":{%b},"forgotten":0,"age_seconds":86400.0}' % entries
        return web.Response(body=body, content_type="application/json")

    async def _tell(self, request: web.Request) -> web.Response:
        told = await request.json()
        self.label = told["label"]
        if "seconds" in told:
            self.seconds, self.most_open, self._told = told["seconds"], self.open, self.begun
        return web.Response()

    async def _stats(self, request: web.Request) -> web.Response:
        answered = self.begun - self.open
        stats = {"begun": self.begun, "answered": answered, "open": self.open, "most_open": self.most_open}
        return web.json_response(stats)


async def _serve(load: Load, host: str, port: int) -> None:
    stand_in = StandIn(load)
    for app, at in ((stand_in.gateway(), GATEWAY_PORT), (stand_in.agents(), port)):
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=3600.0)
        await runner.setup()
        await web.TCPSite(runner, host, at, backlog=_BACKLOG).start()
    await asyncio.Event().wait()


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_rollouts.stand_in", description=__doc__)
    parser.add_argument("load", type=Load.from_text)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    open_files.raise_files()
    asyncio.run(_serve(options.load, options.host, options.port))


if __name__ == "__main__":
    main()
