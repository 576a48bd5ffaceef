"""What experiment trackers get of each report beside the framework's own numbers. Pure.

Names are promises: docs/outputs.md has the table. None is the beginning of another's path, since
MLflow keeps a file for each.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gymtrain_trainer.errors import DropReason
from gymtrain_trainer.monitoring.record import StepRecord
from gymtrain_trainer.progress import Loss
from gymtrain_trainer.rollouts.buffer import UsedGroup

PREFIX = "gymtrain/"

_SECONDS = {"rollout_wait_s": "rollout_wait_seconds", "weight_sync_s": "weight_sync_seconds"}


def series_of(
    record: StepRecord,
    used: Sequence[UsedGroup],
    *,
    numbers: Mapping[str, float],
    dropped: Mapping[DropReason, int],
    lost: Mapping[Loss, int],
    equal_rewards_share: float,
) -> dict[str, float]:
    """The values of a report.

    Args:
        record: of its steps.
        used: groups that these used.
        numbers: what the framework measured.
        dropped: groups so far, by reason.
        lost: rollouts so far that failed for good.
        equal_rewards_share: see there.
    """
    found: dict[str, float] = {
        "reward": record.reward,
        "reward_std": record.reward_std,
        "groups": float(record.groups),
        "staleness": record.staleness,
        "staleness_max": float(max(age for one in used for age in one.staleness)),
        "tokens": float(record.tokens),
        "tokens_per_second": record.tokens_per_second,
        "step_seconds": record.seconds,
        "equal_rewards_share": equal_rewards_share,
    }
    found |= {ours: numbers[theirs] for theirs, ours in _SECONDS.items() if theirs in numbers}
    found |= {f"dropped/{reason}": float(count) for reason, count in dropped.items()}
    by_agent: dict[str, list[UsedGroup]] = defaultdict(list)
    for one in used:
        by_agent[one.group.agent].append(one)
    for agent, groups in by_agent.items():
        cut = sum(len({sample.rollout for sample in one.group.samples if sample.truncated}) for one in groups)
        rollouts = sum(len(one.group.rewards) for one in groups)
        found |= {
            f"agents/{agent}/reward": statistics.fmean(reward for one in groups for reward in one.group.rewards),
            f"agents/{agent}/reward_std": statistics.fmean(one.group.reward_deviation for one in groups),
            f"agents/{agent}/rollouts": float(rollouts),
            f"agents/{agent}/truncated": cut / rollouts,
        }
    lost_by_agent: dict[str, float] = defaultdict(float)
    for loss, count in lost.items():
        lost_by_agent[loss.environment] += count
    found |= {f"agents/{agent}/lost_rollouts": count for agent, count in lost_by_agent.items()}
    return {PREFIX + name: value for name, value in found.items()}


def equal_rewards_share(used: Sequence[UsedGroup], left_out: int) -> float:
    """The share of groups whose rewards are all equal, of which nothing can be learned: among those that a report's
    steps used and those that `rollout.dynamicSampling` left out meanwhile."""
    equal = left_out + sum(not one.group.reward_deviation for one in used)
    return equal / max(1, left_out + len(used))
