"""What groups of a test run with: vLLM as the guard sees it, and who hears of failures."""

import asyncio

from gymtrain_trainer.rollouts.group import Lost
from gymtrain_trainer.rollouts.guard import Look, Versions


class Servers:
    """vLLM, as the guard sees it."""

    def __init__(self, version: str = "run:1:1", *, hangs: bool = False) -> None:
        self.versions: Versions = {"http://vllm": version}
        self._hangs = hangs

    async def look(self) -> Look:
        if self._hangs:
            await asyncio.sleep(60)
        return Look(dict(self.versions), 0, 0)


class Heard:
    """Who hears of failures."""

    def __init__(self) -> None:
        self.tries: list[str] = []
        self.lost: list[Lost] = []
        self.agents: set[str] = set()
        self.running = 0

    def rollout_failed(self, error: str) -> None:
        self.tries.append(error)

    def rollout_lost(self, agent: str, lost: Lost) -> None:
        self.agents.add(agent)
        self.lost.append(lost)

    def rollouts_running(self, count: int) -> None:
        self.running = count
