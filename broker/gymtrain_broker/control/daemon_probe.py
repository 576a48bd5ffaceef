"""Asks the daemons in the sandboxes: are they there yet, and for how long have they been idle."""

import asyncio
from collections.abc import Callable

from gymtrain_api.sandboxes import SandboxState
from gymtrain_broker.control.daemons import Daemons
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.claims import Claim
from gymtrain_broker.policy.state import Answered, State
from gymtrain_broker.settings import Settings

_POLLS = 32  # daemons asked at once


class DaemonProbe:
    """What the daemons of a run say of themselves."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        daemons: Daemons,
        ready_now: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`ready_now` is told the name of each pod whose daemon begins to answer."""
        self._settings = settings
        self._state = state
        self._daemons = daemons
        self._ready_now = ready_now
        self._clock = clock
        self._probes: dict[str, asyncio.Task[None]] = {}

    def probe(self, pod: SandboxPod) -> None:
        """Asks a daemon until it answers, if its container runs and nobody asks it yet."""
        if not _worth_asking(pod) or self._state.is_ready(pod) or pod.name in self._probes:
            return
        task = asyncio.create_task(self._until_ready(pod.name))
        self._probes[pod.name] = task
        task.add_done_callback(lambda _: self._probes.pop(pod.name, None))

    async def _until_ready(self, name: str) -> None:
        pause = self._settings.rhythm.probe_first
        while True:
            pod = self._state.pods.get(name)
            if pod is None or not _worth_asking(pod) or self._state.is_ready(pod):
                return
            instance = await self._daemons.instance(pod)
            if instance is not None:
                self._state.ready[name] = Answered(pod.restarts, instance)
                self._ready_now(name)
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, self._settings.rhythm.probe_most)

    async def poll(self) -> None:
        """Asks the daemons of running sandboxes, over and over. Until it is cancelled."""
        gate = asyncio.Semaphore(_POLLS)

        async def ask(claim: Claim) -> None:
            async with gate:
                await self.listen(claim)

        while True:
            await asyncio.sleep(self._settings.idle_poll)
            running = [claim for claim in self._state.active.values() if claim.state is SandboxState.RUNNING]
            await asyncio.gather(*map(ask, running))

    async def listen(self, claim: Claim) -> None:
        """Notes for how long a sandbox has been idle."""
        pod = self._state.pods.get(claim.pod)
        idle = None if pod is None else await self._daemons.idle_seconds(pod)
        if idle is not None and claim.ready_at is not None:
            claim.heard_at = self._clock()
            claim.idle = min(idle, claim.heard_at - claim.ready_at)  # a warm one has been idle before its claim


def _worth_asking(pod: SandboxPod) -> bool:
    return pod.running and bool(pod.ip) and not pod.lost
