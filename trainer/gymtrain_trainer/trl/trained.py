"""What a step makes of its samples, for records: advantages from rank 0, ratios from wherever they are trained.

```
rank 0      plan ────────────────────────────────────────────── gather ──► of_step
all ranks     └► rank's samples with their names ► watched model ─┘
```
Only where the run keeps records. Ratios stay on the device until the step's end; one collective brings them.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gymtrain_trainer.framework import SampleGroup, TrainedSample

type Name = tuple[int, int]  # of a sample: its group, its place there

NAMES = "samples"
"""Key of what a rank forwards in a micro-batch: the names of its samples, by segment_id. None of a copy that isn't
trained on: a filler, or a masked sample."""

_UNMEASURED = -1.0  # in place of a ratio: the sample has no token in the loss
_MOST = 65504.0  # what a half of a float holds: three digits are enough to look at

type Ratios = tuple[float, array[float]]  # of a sample: their mean, and each


class TrainedSamples:
    """The samples of the step at hand. One on each rank."""

    def __init__(self, *, tokens: bool = False) -> None:
        """`tokens`: the ratios of single tokens are wanted, too."""
        self._tokens = tokens
        self._advantages: dict[Name, float] = {}  # rank 0
        self._names: list[Name | None] = []  # of what this rank has measured
        self._ratios: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []  # of tokens, by sample
        self._token_ratios: list[torch.Tensor] = []
        self._gathered: dict[Name, Ratios] = {}  # rank 0

    def plan(self, groups: Sequence[SampleGroup], advantages: Sequence[Sequence[float]]) -> Mapping[int, Name]:
        """On rank 0, before a step of these groups, with each rollout's advantage. Names of samples, by their id()."""
        named = {
            (group.id, index): (sample, of_group[sample.rollout])
            for group, of_group in zip(groups, advantages, strict=True)
            for index, sample in enumerate(group.samples)
        }
        self._advantages = {name: advantage for name, (_, advantage) in named.items()}
        return {id(sample): name for name, (sample, _) in named.items()}

    def watched(self, model: Callable[..., Any], packed: Mapping[str, Any]) -> Callable[..., Any]:
        """The model, whose log-probabilities of a packed sequence are looked at on the way."""

        def forward(**arguments: Any) -> Any:
            outputs = model(**arguments)
            self._measure(outputs.log_probs, packed)
            return outputs

        return forward

    def gather(self) -> None:
        """At the end of a step: brings what was measured to rank 0. A collective."""
        values: list[float] = torch.cat(self._ratios).tolist() if self._ratios else []
        mine = {
            name: (value, each)
            for name, value, each in zip(self._names, values, self._of_tokens(), strict=True)
            if name is not None and value != _UNMEASURED
        }
        self._names, self._ratios, self._counts, self._token_ratios = [], [], [], []
        every: list[Any] = [mine]
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            first = torch.distributed.get_rank() == 0
            every = [None] * torch.distributed.get_world_size()
            torch.distributed.gather_object(mine, every if first else None, dst=0)
            every = every if first else []
        self._gathered = {name: value for part in every for name, value in part.items()}

    def of_step(self) -> list[TrainedSample]:
        """On rank 0, after `gather`: all samples of the step."""
        unmeasured: tuple[float | None, Sequence[float]] = (None, ())
        return [
            TrainedSample(*name, advantage, *self._gathered.get(name, unmeasured))
            for name, advantage in self._advantages.items()
        ]

    def _of_tokens(self) -> list[array[float]]:
        """Ratios of the tokens of each sample that this rank has measured; empty ones where they aren't wanted."""
        if not self._tokens or not self._names:
            return [array("f") for _ in self._names]
        counts: list[int] = torch.cat(self._counts).tolist()
        every = torch.cat(self._token_ratios).cpu().float()
        return [array("f", part.numpy().tobytes()) for part in every.split(counts)]

    def _measure(self, log_probs: torch.Tensor, packed: Mapping[str, Any]) -> None:
        with torch.no_grad():
            trained = packed["token_index"] >= 0
            where, segment_id = packed["token_index"][trained], packed["segment_id"][trained]
            ratio = (log_probs.detach().flatten()[where].float() - packed["old_log_probs"][trained].float()).exp()
            names = packed[NAMES]
            sums = torch.zeros(2, len(names), device=ratio.device).index_add_(
                1, segment_id, torch.stack([ratio, torch.ones_like(ratio)])
            )
            self._ratios.append(torch.where(sums[1] > 0, sums[0] / sums[1], _UNMEASURED))
            self._names += names
            if self._tokens:  # they stand sample by sample
                self._counts.append(sums[1].long())
                self._token_ratios.append(ratio.clamp(max=_MOST).half())
