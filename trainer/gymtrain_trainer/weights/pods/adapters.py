"""Adapters in one vLLM pod. The adapter's name is the version label, so that a request names the weights it wants.

A new version is a new name, never an adapter loaded in place: vLLM keys its prefix cache by the name.
"""

from __future__ import annotations

from dataclasses import dataclass

from gymtrain_api.weight_version import WeightVersion
from gymtrain_trainer.weights.errors import PodRefusedError
from gymtrain_trainer.weights.pods.client import UNSYNCED, PodClient, PublishedVersion

_BAD_REQUEST = 400
_LOADED = "already been loaded"  # of vLLM's answer


@dataclass(frozen=True)
class AdapterCarrier:
    """How one pod is asked and served."""

    run: str
    attempt: int
    max_staleness: int  # versions behind the newest that requests may still name

    async def version(self, client: PodClient) -> str:
        """The newest adapter of this attempt; else one that some other attempt or run left."""
        names = await client.models()
        numbers = [number for name in names if (number := self.number(name)) is not None]
        if numbers:
            return f"{self.run}:{self.attempt}:{max(numbers)}"
        return next((name for name in names if name.count(":") == 2), UNSYNCED)

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        """Loads the adapter beside the older ones, then forgets those that no request names any more."""
        try:
            await client.load_adapter(version.label, version.source, seconds)
        except PodRefusedError as error:
            if error.status != _BAD_REQUEST or _LOADED not in error.text:
                raise
        newest = self.number(version.label) or 0
        for name in await client.models():
            number = self.number(name)
            stale = number < newest - self.max_staleness if number is not None else name.startswith(f"{self.run}:")
            if stale:
                await client.unload_adapter(name)
        return 0.0  # generation goes on all the time

    def number(self, name: str) -> int | None:
        """Of a version of this attempt; None for any other name."""
        return WeightVersion.number_in(name, self.run, self.attempt)
