"""The agents that the rows of a dataset can be for.

Apart from `servers`, because the data container needs no more of the Gym config than this, and loads in a third of
the time without NeMo Gym.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class AgentDirectory:
    """The agents that rows can name."""

    names: frozenset[str]
    reasoning_gym: frozenset[str] = frozenset()  # agents in front of a reasoning_gym server

    def default(self, dataset_agent: str | None, generated: bool) -> str | None:
        """The agent of rows that name none: the dataset's, the only one, or for a generated dataset the only one
        that reasoning_gym scores."""
        if dataset_agent is not None:
            return dataset_agent
        candidates = self.reasoning_gym if generated and self.reasoning_gym else self.names
        return next(iter(candidates)) if len(candidates) == 1 else None
