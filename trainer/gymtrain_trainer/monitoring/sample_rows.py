"""The samples of a step as rows of a file. docs/records.md tells users of the columns."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gymtrain_trainer.framework import TrainedSample
from gymtrain_trainer.rollouts.buffer import UsedGroup

FOLDER = "records"  # below the run's

COLUMNS: Mapping[str, str] = {
    "step": "int64",
    "group": "int64",  # position of its row in the draw order
    "rollout": "int32",  # in the group
    "sample": "int32",  # in the group
    "agent": "string",
    "reward": "double",
    "reward_deviation": "double",  # of the group
    "advantage": "double",
    "ratio": "double",
    "version": "string",  # label of the weights that it met in the step
    "versions": "list<string>",  # labels of those that sampled it, oldest first
    "staleness": "int32",
    "truncated": "bool",
    "masked": "bool",
    "constrained": "bool",
    "token_ids": "list<int32>",
    "mask": "list<int8>",
    "log_probs": "list<float>",
    "ratios": "list<float>",
}


@dataclass(frozen=True)
class StepSamples:
    """What is written of one step.

    Attributes:
        step: its number.
        used: the groups that are written.
        trained: what the step made of their samples.
        labels: of the model versions that `used` names.
    """

    kind: ClassVar[str] = "step"
    columns: ClassVar[Mapping[str, str]] = COLUMNS

    step: int
    used: Sequence[UsedGroup]
    trained: Sequence[TrainedSample]
    labels: Mapping[int, str]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One by sample, its columns in order; the tokens' are the sample's own arrays."""
        trained = {(one.group_id, one.index): one for one in self.trained}
        for one in self.used:
            for index, sample in enumerate(one.group.samples):
                made = trained.get((sample.group_id, index))
                yield {
                    "step": self.step,
                    "group": sample.group_id,
                    "rollout": sample.rollout,
                    "sample": index,
                    "agent": sample.agent,
                    "reward": sample.reward,
                    "reward_deviation": one.group.reward_deviation,
                    "advantage": made.advantage if made else None,
                    "ratio": made.ratio if made else None,
                    "version": self.labels[one.version],
                    "versions": [self.labels[version] for version in sample.versions],
                    "staleness": one.version - sample.version,
                    "truncated": sample.truncated,
                    "masked": sample.masked,
                    "constrained": sample.constrained,
                    "token_ids": sample.token_ids,
                    "mask": sample.mask,
                    "log_probs": sample.log_probs,
                    "ratios": _by_token(sample.mask, made.ratios if made else ()),
                }


def _by_token(mask: Sequence[int], ratios: Sequence[float]) -> array[float]:
    """For each token, its ratio, or 0 where it isn't trained on; empty where none is known."""
    if not ratios:
        return array("f")
    left = iter(ratios)
    return array("f", (next(left, 0.0) if trained else 0.0 for trained in mask))
