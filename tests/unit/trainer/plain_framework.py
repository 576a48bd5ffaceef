"""A second training framework, for tests: a package of its own and a line in `FRAMEWORKS` make a run train with it.

Its model is a number, and a step adds the rewards of its samples to it. It has what the seam asks for, and no torch.
"""

import json
import queue
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.checkpoints.folder import checkpoint_folder
from gymtrain_trainer.context import Context
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.framework import (
    ContextLength,
    Framework,
    Launch,
    RankZeroParts,
    SampleGroup,
    StepMeasures,
    Steps,
    TrainedSample,
    Trainer,
    TrainerParts,
    TrainingSample,
    TrainingSettings,
)
from gymtrain_trainer.launch import torchrun_arguments


class Number:
    """What stands for a tensor."""

    def __init__(self, value: float) -> None:
        self.value = value

    def clone(self) -> "Number":
        """Another one."""
        return Number(self.value)


class PlainTrainer:
    """Trains on one process."""

    tokenizer = staticmethod(lambda text: SimpleNamespace(input_ids=[ord(character) for character in text]))
    model_config = None

    def __init__(self, parts: TrainerParts) -> None:
        assert parts.rank_zero is not None, "one process only"
        self.step = 0
        self.trained: list[TrainingSample] = []
        self._weight = 0.0
        self._parts = parts
        self._zero: RankZeroParts = parts.rank_zero
        self._version = 0

    def run(self, checkpoint: Path | None) -> None:
        """Trains to the end."""
        if checkpoint is not None:
            self.read_checkpoint(checkpoint)
        total = self._parts.settings.max_steps
        assert total is not None
        self._zero.callbacks.on_begin(Steps(self.step, total))
        self._zero.transfer.init_weight_transfer()
        try:
            self._sync()
            self._zero.rollouts.start()
            self._zero.callbacks.on_synced(Steps(self.step, total))
            while self.step < total and not self._parts.stop.requested:
                self._step(total)
        finally:
            self._zero.rollouts.stop()
            self._zero.transfer.destroy()

    def read_checkpoint(self, folder: Path) -> None:
        """The number and the step."""
        state = json.loads((folder / "plain.json").read_text())
        self.step, self._weight = state["step"], state["weight"]

    def settle(self) -> object:
        """As frameworks do whose ranks agree on something before they train."""
        return self._zero.settle_transport()

    def _step(self, total: int) -> None:
        callbacks = self._zero.callbacks
        groups = [self._group() for _ in range(self._parts.settings.groups_per_step or 1)]
        samples = [sample for group in groups for sample in group.samples]
        callbacks.on_step_begin()
        self.trained += samples
        self._weight += sum(sample.reward for sample in samples)
        self.step += 1
        steps = Steps(self.step, total)
        callbacks.on_step_end(steps, [made for group in groups for made in self._made_of(group)])
        self._sync()
        callbacks.on_synced(steps)
        callbacks.on_measures(steps, StepMeasures(loss=0.5, kl=0.0, ratio=1.0))
        if self._parts.context.run.spec.trainer.checkpoint:
            try:
                with callbacks.saving():
                    self.save_checkpoint()
            except OSError as error:
                callbacks.on_save_error(steps, error)
            callbacks.on_save(steps)

    def _made_of(self, group: SampleGroup) -> list[TrainedSample]:
        """What records say of a step: its weights gave each token the probability that it was sampled with."""
        mean = statistics.fmean(group.rewards)
        return [
            TrainedSample(group.id, index, advantage=sample.reward - mean, ratio=1.0)
            for index, sample in enumerate(group.samples)
        ]

    def _group(self) -> SampleGroup:
        while True:
            try:
                return self._zero.rollouts.buffer.get(timeout=0.2)
            except queue.Empty:
                self._zero.rollouts.check_health()

    def _sync(self) -> None:
        self._zero.transfer.pause()
        self._zero.transfer.send_weights(self.parameters())
        self._zero.transfer.resume()
        if asked := self._zero.transfer.to_compare():
            self._zero.transfer.compare([[0.0] * len(one.tokens) for one in asked])
        self._version += 1
        self._zero.rollouts.update_model_version(self._version)

    def save_checkpoint(self) -> None:
        """The number and the step."""
        folder = checkpoint_folder(self._parts.context.run_folder, self.step)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "plain.json").write_text(json.dumps({"step": self.step, "weight": self._weight}))

    def save_model(self, folder: Path) -> None:
        """The number."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plain.json").write_text(json.dumps({"weight": self._weight}))

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """One."""
        yield "weight", Number(self._weight)

    def agree(self, flag: bool) -> bool:
        """There is one rank."""
        return flag

    def wait_for_everyone(self) -> None:
        """There is one rank."""


class Plain:
    """Takes `steps`, `batch` (groups) and `group` (rollouts) in `spec.trainer.config`."""

    trainer: PlainTrainer | None = None  # the last that was made

    def settings(self, spec: GymTrainingRunSpec, rows: int | None) -> TrainingSettings:
        """By its own names."""
        config = spec.trainer.config
        if rows is not None and "steps" not in config:
            raise SettingsError("spec.trainer.config sets no steps")
        return TrainingSettings(
            group_size=config.get("group", 2),
            groups_per_step=config.get("batch", 2),
            max_sample_tokens=None,
            max_steps=config.get("steps"),
            sync_every_steps=1,
            fork_threshold=0,
            temperature=1.0,
            max_completion_tokens=16,
            seed=42,
        )

    def check_settings(self, spec: GymTrainingRunSpec, context: ContextLength | None) -> list[Finding]:
        """Names that it doesn't know."""
        unknown = sorted(spec.trainer.config.keys() - {"steps", "batch", "group"})
        return [Finding(where=f"spec.trainer.config.{name}", message="plain has no such setting") for name in unknown]

    def rehearse(self, spec: GymTrainingRunSpec, model: Path) -> tuple[list[Finding], list[Finding]]:
        """Nothing can go wrong."""
        return [], [Finding(where="spec.trainer", message="plain learns nothing")]

    def launch(self, context: Context) -> Launch:
        """As most."""
        return Launch(torchrun_arguments(context), {})

    def make_trainer(self, parts: TrainerParts) -> Trainer:
        """The trainer."""
        Plain.trainer = PlainTrainer(parts)
        return Plain.trainer


def make_framework() -> Framework:
    """See `framework.load_framework`."""
    return Plain()
