"""The seam between the trainer's process and a training framework.

```
rollouts/ ── SampleGroup ──► Trainer.run ── parameters ──► weights/
   ▲                              │  ▲
   │ model version                │  └── StopSignal, last checkpoint (train.py)
   └──────────────────────────────┤
                                  └── steps, measures, saves (StepCallbacks) ──► monitoring/, checkpoints/
```

A framework is a package below this one whose module `framework` has a function `make_framework()` that returns a
`Framework`; `FRAMEWORKS` lists them. Nothing outside such a package imports its libraries, or the package.

What a framework promises:

- It takes groups from `Rollouts.buffer` alone, on rank 0, and trains on all samples of each in one optimizer step.
- It takes the groups of a step after the step before has ended, with its weight sync where there is one: the staleness
  of a sample at that moment is its staleness in the step that uses it.
- It syncs the weights once before the first step, then after every `sync_every_steps` steps, and tells the rollouts the
  new model version: 1 after the first sync.
- After each sync all ranks compute the log-probabilities that `WeightTransfer.to_compare` asks for, with the weights
  that were sent, and all end where `WeightTransfer.compare` raises.
- The checkpoint of step N is the folder `checkpoint-N` of the run's folder, with what resuming needs but the place in
  the data. One of an adapter holds `adapter_config.json`, one of all weights `config.json`, as peft and transformers
  write them.
- After SIGTERM every rank ends at the end of the same step, with a checkpoint where those are kept.
"""

import importlib
import queue
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.context import Context
from gymtrain_trainer.stopping import StopSignal

if TYPE_CHECKING:  # preflight has no use for what it brings
    from gymtrain_trainer.weights import Completion, Transport
    from gymtrain_trainer.weights.transports.transport import NamedTensors

FRAMEWORKS = {  # by what spec.trainer.framework calls them
    "TRL": "gymtrain_trainer.trl.framework",
}
DEFAULT = "TRL"


# --- what goes to a framework ---


@dataclass(frozen=True)
class TrainingSample:
    """One sequence of tokens to train on: the turns of a rollout that continue each other.

    Three columns have one entry for each token, from the first of the first prompt to the last that was sampled:

    | column | a token that the model sampled | any other: prompt, tool output, template |
    |---|---|---|
    | `token_ids` | its id | its id |
    | `mask` | 1; 0 where it is context for a later turn alone | 0 |
    | `log_probs` | its log-probability when it was sampled, at the run's temperature | 0.0 |

    Token `i` was sampled after exactly the tokens before it. At least one token has mask 1.

    Attributes:
        token_ids, mask, log_probs: arrays of the standard library, as samples wait in memory; nobody changes them.
        versions: model versions that sampled a part of it, oldest first.
        group_id: the position of the group's row in the draw order; the samples of a group share it.
        rollout: the number of its rollout in the group's rewards, from 0; the samples of one that forked share it.
        agent: the agent server of its row.
        reward: of its rollout.
        truncated: its rollout hit the token limit.
        masked: nothing of it may reach the gradient, as for a truncated one with `spec.rollout.maskTruncated`. Its
            reward still counts for the group.
        constrained: a grammar held a turn of it, so its log-probabilities are those among the allowed tokens.
    """

    token_ids: Sequence[int]
    mask: Sequence[int]
    log_probs: Sequence[float]
    versions: tuple[int, ...]
    group_id: int
    rollout: int
    agent: str
    reward: float
    truncated: bool = False
    masked: bool = False
    constrained: bool = False

    def __post_init__(self) -> None:
        lengths = len(self.token_ids), len(self.mask), len(self.log_probs)
        if len(set(lengths)) > 1:
            raise ValueError(f"token ids, mask and log-probabilities of a sample have {lengths} entries")

    @property
    def version(self) -> int:
        """The oldest model version that sampled a part of it; staleness counts from there."""
        return self.versions[0]

    @cached_property
    def trained_tokens(self) -> int:
        """Tokens in the loss."""
        return bytes(self.mask).count(1)  # not by Python's integers: a step has millions of tokens


@dataclass(frozen=True)
class SampleGroup:
    """The rollouts of one row, which are compared with each other, and trained in one step or not at all.

    Attributes:
        id: the position of the row in the draw order.
        agent: the agent server of the row.
        rewards: that count for mean and deviation: of its rollouts, as the environment gave them, or 0 for one that
            failed (spec.rollout.onFailure). Failed ones whose tokens are lost come last. One that was dropped from the
            group is in none of its numbers.
        samples: of all its rollouts whose tokens are known: at least one a rollout, in the order of the rollouts.
    """

    id: int
    agent: str
    rewards: tuple[float, ...]
    samples: tuple[TrainingSample, ...]

    @property
    def version(self) -> int:
        """The oldest model version that sampled a part of it."""
        return min(sample.version for sample in self.samples)

    @property
    def reward_deviation(self) -> float:
        """Standard deviation of the rewards, of the population; exactly 0 where they are equal."""
        return statistics.pstdev(self.rewards) if max(self.rewards) > min(self.rewards) else 0.0


class GroupQueue(Protocol):
    """Where the groups come from."""

    def get(self, timeout: float) -> SampleGroup:
        """The next group; raises queue.Empty after `timeout` seconds, as `queue.Queue` does."""
        ...

    def qsize(self) -> int:
        """Groups that wait."""
        ...


class Rollouts(Protocol):
    """The rollout worker, as a framework's trainer uses it: on rank 0, from the main thread."""

    @property
    def buffer(self) -> GroupQueue:
        """Where to take groups from."""
        ...

    @property
    def metrics(self) -> queue.Queue[dict[str, Any]]:
        """What the worker measures by itself, for the framework's own records: numbers by name, to be added up where
        the name has the word `total`, else averaged."""
        ...

    def start(self) -> None:
        """Begin; called after the first weight sync."""
        ...

    def stop(self) -> None:
        """End; called when training is over, well or not."""
        ...

    def update_model_version(self, model_version: int) -> None:
        """Tell the model version that vLLM holds from now on."""
        ...

    def check_health(self) -> None:
        """Called now and then while no group comes.

        Raises:
            TrainerError: none will come.
        """
        ...


class WeightTransfer(Protocol):
    """The way of the weights to vLLM, as a framework's trainer uses it: on rank 0, from the main thread."""

    @property
    def sent_dtype(self) -> str | None:
        """What the transport casts floating-point tensors to, such as bfloat16; None if it doesn't. Known after
        `init_weight_transfer`. A framework may cast before."""
        ...

    def init_weight_transfer(self) -> None:
        """Finds the servers; once, before the first sync."""
        ...

    def pause(self) -> None:
        """Before the weights of a sync are gathered."""
        ...

    def send_weights(self, iterator: "NamedTensors") -> None:
        """Brings the weights to every pod, as the next version; reads the iterator to its end."""
        ...

    def resume(self) -> None:
        """After the weights."""
        ...

    def to_compare(self) -> "list[Completion]":
        """After `resume`: what vLLM sampled for the parity check; none where it isn't due."""
        ...

    def compare(self, log_probs: Sequence[Sequence[float]]) -> None:
        """The parity check. `log_probs`: of each token of each completion of `to_compare`, at temperature 1.

        Raises:
            WeightParityError: of weights: vLLM computes something else.
        """
        ...

    def destroy(self) -> None:
        """Ends it."""
        ...


@dataclass(frozen=True)
class Steps:
    """How far training is, in optimizer steps."""

    done: int
    total: int


@dataclass(frozen=True)
class StepMeasures:
    """What a framework measured of the steps since the last report; None if it didn't."""

    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    kl: float | None = None  # between the weights that sampled and those that train
    ratio: float | None = None  # mean importance weight
    entropy: float | None = None
    rollout_wait_s: float | None = None
    weight_sync_s: float | None = None

    def known(self) -> dict[str, float]:
        """What was measured, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: float(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class TrainedSample:
    """What a step made of one of its samples.

    Attributes:
        group_id, index: the sample: its group, and its place among the samples of that, from 0.
        advantage: of its rollout, before the length of anything comes in.
        ratio: mean over its trained tokens of the probability under the step's weights, before the step, over that when
            it was sampled; None where it wasn't measured, as of a masked sample.
        ratios: the same of each trained token, in order; empty where `ratio` is None, or samples aren't recorded.
    """

    group_id: int
    index: int
    advantage: float
    ratio: float | None
    ratios: Sequence[float] = ()


@dataclass(frozen=True)
class ShownRollout:
    """A rollout for people to read. Texts are cut to a bounded length."""

    agent: str
    reward: float
    prompt: str
    completion: str
    tokens: int
    turns: int
    model_version: int


class StepCallbacks(Protocol):
    """What a framework's trainer calls at its steps: on rank 0, from the main thread."""

    def on_begin(self, steps: Steps) -> None:
        """Training begins, maybe from a checkpoint, which was read; before the first weight sync. Waits for the run's
        servers, and raises TrainerError where they don't come up."""
        ...

    def on_step_begin(self) -> None:
        """The groups of a step are there."""
        ...

    def on_step_end(self, steps: Steps, trained: Sequence[TrainedSample] = ()) -> None:
        """After the optimizer's step, which used all groups that were taken, before its weight sync and its
        checkpoint. `trained`: all samples of the step, where `spec.trainer.records.on`; nobody reads it elsewhere."""
        ...

    def on_synced(self, steps: Steps) -> None:
        """After the weight sync of a step, or after the step where it has none, before its checkpoint; and after the
        sync before the first step, once the rollouts have started."""
        ...

    def on_measures(self, steps: Steps, measures: StepMeasures) -> None:
        """After the weight sync, where the user's settings want a report of this step."""
        ...

    def series(self) -> Mapping[str, float]:
        """After `on_measures`: numbers of that report for experiment trackers, by names that stay."""
        ...

    def shown(self) -> Sequence[ShownRollout]:
        """After `on_measures`: some rollouts for experiment trackers; each is given once."""
        ...

    def on_reporter(self, name: str, failing: str | None) -> None:
        """An experiment tracker doesn't take reports, and why; None: it does again. From any thread; never raises."""
        ...

    def saving(self) -> AbstractContextManager[None]:
        """Around the writing of a checkpoint."""
        ...

    def on_save(self, steps: Steps) -> None:
        """A checkpoint was written, or tried."""
        ...

    def on_save_error(self, steps: Steps, error: Exception) -> None:
        """A checkpoint could not be written. Returns where training is to go on, raises `error` where it isn't."""
        ...


@dataclass(frozen=True)
class RankZeroParts:
    """What a trainer gets on rank 0 alone.

    Attributes:
        settle_transport: chooses the transport, for a framework whose ranks sync an adapter another way than all
            weights; to be called before `WeightTransfer.init_weight_transfer`. Waits for the vLLM servers and asks
            them, and raises TrainerError or WeightsError where none fits.
    """

    rollouts: Rollouts
    transfer: WeightTransfer
    settle_transport: "Callable[[], Transport]"
    callbacks: StepCallbacks


# --- what comes from a framework ---


@dataclass(frozen=True)
class TrainingSettings:
    """What the rest of the trainer has to know of `spec.trainer.config`, whose names are the framework's.

    Attributes:
        group_size: rollouts of a group.
        groups_per_step: that one optimizer step uses; None where a step ends at a number of tokens.
        max_sample_tokens: of a sample that can be trained on; None where there is no limit.
        max_steps: optimizer steps of the run; None if they aren't known yet, or settings don't say.
        sync_every_steps: optimizer steps from one weight version to the next.
        fork_threshold: without a gateway, a turn whose history differs from what was sampled in fewer tokens than this,
            all within the last answer, goes on with the sequence; those tokens are not trained.
        temperature: of the sampling, and of the log-probabilities that are trained on.
        max_completion_tokens: that the policy may write in one call.
        seed: of the draw order.
        checkpoint_kind: settings that a run must share with another one to resume from its checkpoints, in words; empty
            where they aren't known.
    """

    group_size: int
    groups_per_step: int | None
    max_sample_tokens: int | None
    max_steps: int | None
    sync_every_steps: int
    fork_threshold: int
    temperature: float
    max_completion_tokens: int
    seed: int
    checkpoint_kind: str = ""


@dataclass(frozen=True)
class ContextLength:
    """Tokens that prompt and answer may have together, and who says so."""

    tokens: int
    source: str


@dataclass(frozen=True)
class Launch:
    """How a pod starts its training processes: each runs `python -m gymtrain_trainer`, its RANK in the environment."""

    command: list[str]
    environment: Mapping[str, str]  # more than the pod's own


@dataclass(frozen=True)
class TrainerParts:
    """What a trainer is made of; `rank_zero` on that rank only."""

    context: Context
    settings: TrainingSettings
    stop: StopSignal
    rank_zero: RankZeroParts | None


class Trainer(Protocol):
    """A trainer with its model loaded. All ranks call `run`, `save_model`, `agree` and `wait_for_everyone` together."""

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        ...

    @property
    def tokenizer(self) -> Any:
        """transformers' tokenizer of the model."""
        ...

    @property
    def model_config(self) -> Any:
        """transformers' configuration of the model, by which a copy of it can be made."""
        ...

    def run(self, checkpoint: Path | None) -> None:
        """Trains to the end, from a checkpoint where there is one.

        Raises:
            TrainerError: and the errors of the weights package.
        """
        ...

    def save_checkpoint(self) -> None:
        """Writes a checkpoint of the step that was done last; on one process that trains alone."""
        ...

    def save_model(self, folder: Path) -> None:
        """Writes the model in its own type, or the adapter, as vLLM loads it. `folder` isn't there yet."""
        ...

    def parameters(self) -> "NamedTensors":
        """What a weight sync sends, under the names that it sends; sharded ones not gathered."""
        ...

    def agree(self, flag: bool) -> bool:
        """True on every rank if `flag` is True on one."""
        ...

    def wait_for_everyone(self) -> None:
        """Until every rank is here."""
        ...


class Framework(Protocol):
    """A training framework."""

    def settings(self, spec: GymTrainingRunSpec, rows: int | None) -> TrainingSettings:
        """What `spec.trainer.config` means; values of a wrong type count as defaults, since preflight reports them.

        `rows`: of all datasets, None where they aren't known yet. Imports nothing heavy.

        Raises:
            SettingsError: the rows are known, and the settings give training no end.
        """
        ...

    def check_settings(self, spec: GymTrainingRunSpec, context: ContextLength | None) -> list[Finding]:
        """Preflight's look at `spec.trainer.config` and `spec.model.lora`; `context`: None where it isn't known."""
        ...

    def rehearse(self, spec: GymTrainingRunSpec, model: Path) -> tuple[list[Finding], list[Finding]]:
        """Findings and warnings of making the trainer without weights and GPUs, for the model in a folder."""
        ...

    def launch(self, context: Context) -> Launch:
        """How this pod starts its processes, where the run has several."""
        ...

    def make_trainer(self, parts: TrainerParts) -> Trainer:
        """Loads the model and makes the trainer.

        Raises:
            SettingsError: the settings are refused, as every later attempt's would be.
        """
        ...


def load_framework(name: str | None = None) -> Framework:
    """The framework that `spec.trainer.framework` names; the default one where it is left out."""
    made: Framework = importlib.import_module(FRAMEWORKS[name or DEFAULT]).make_framework()
    return made
