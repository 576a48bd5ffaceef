"""Off-policy correction: what becomes of tokens that the weights of the step would sample with another probability than
those that did (`spec.rollout.correction`).

The ratio of a token is its probability under the weights that train over that under the weights that sampled it. TRL's
asynchronous loss already multiplies each token's gradient by it, and stops where it left [1 - epsilon, 1 +
epsilon_high] in the direction of the advantage: importance sampling with PPO's clip against the sampler. A weight on
top would correct twice. So a mode either masks, and leaves TRL's loss as it is for the rest, or takes the place of
ratio and clip:

| mode | a token's gradient | source |
|---|---|---|
| None | TRL's: ratio, with PPO's clip | arXiv 1707.06347 |
| TokenMask | TRL's; 0 where its ratio is outside [min, max] | IcePop (arXiv 2510.18855) |
| SequenceMask | TRL's; 0 where the geometric mean of its sequence's ratios is outside | verl's rollout correction |
| TokenTruncate | min(ratio, max) | TIS, with PPO's decoupled objective (arXiv 2110.00641, 2505.24298) |
| SequenceTruncate | min(product of its sequence's ratios, max) | the same, by sequence |

The last two are the decoupled objective: its proximal policy is that of the step's own weights. Each sample is used in
one step alone, so the ratio that PPO clips is 1 there, and the clip never acts.

It works on gradients: the value of the loss, and TRL's ratio, kl and clip_ratio, stay those of the samples as they are.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from gymtrain_api.spec import CorrectionMode

if TYPE_CHECKING:
    import torch

_LOG_LIMIT = 20.0  # of a ratio's logarithm: nothing overflows


@dataclass(frozen=True)
class Correction:
    """`spec.rollout.correction`."""

    mode: CorrectionMode = "None"
    lowest: float = 0.5  # ratio
    highest: float = 2.0

    @property
    def clips(self) -> bool:
        """Whether PPO's clip acts."""
        return self.mode not in ("TokenTruncate", "SequenceTruncate")


def gradient_scale(
    log_probs: "torch.Tensor", old_log_probs: "torch.Tensor", segment_id: "torch.Tensor", correction: Correction
) -> "torch.Tensor":
    """By what the gradient of each token's loss, which has the ratio in it, is multiplied.

    Args:
        log_probs: (tokens,) under the weights that train.
        old_log_probs: (tokens,) under those that sampled.
        segment_id: (tokens,) the sequence of each token, from 0.
        correction: a mode other than None.
    """
    import torch

    with torch.no_grad():
        log_ratio = (log_probs.float() - old_log_probs.float()).clamp(-_LOG_LIMIT, _LOG_LIMIT)
        count = int(segment_id.max()) + 1

        def of_sequence(values: torch.Tensor) -> torch.Tensor:
            zeros = torch.zeros(count, device=values.device, dtype=values.dtype)
            return zeros.index_add_(0, segment_id, values)

        match correction.mode:
            case "None":
                return torch.ones_like(log_ratio)
            case "TokenMask":
                return _inside(log_ratio.exp(), correction)
            case "SequenceMask":
                mean = of_sequence(log_ratio) / of_sequence(torch.ones_like(log_ratio)).clamp(min=1)
                return _inside(mean.exp(), correction)[segment_id]
            case "TokenTruncate":
                return log_ratio.exp().clamp(max=correction.highest) / log_ratio.exp()
            case "SequenceTruncate":
                product = of_sequence(log_ratio).clamp(-_LOG_LIMIT, _LOG_LIMIT).exp().clamp(max=correction.highest)
                return product[segment_id] / log_ratio.exp()
            case _:
                assert_never(correction.mode)


def _inside(ratio: "torch.Tensor", correction: Correction) -> "torch.Tensor":
    return ((ratio >= correction.lowest) & (ratio <= correction.highest)).to(ratio.dtype)


def with_gradient(values: "torch.Tensor", scale: "torch.Tensor") -> "torch.Tensor":
    """`values` as they are, whose gradient is multiplied by `scale`."""
    fixed = values.detach()
    return fixed + scale * (values - fixed)
