"""Where a run begins: at its own last checkpoint, at that of an earlier run (`spec.resumeFrom`), or at step 0.

Every rank finds the same, whatever rank 0 moves meanwhile: a run's own checkpoints carry its uid, and what
`spec.resumeFrom` names is never moved.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gymtrain_api import names
from gymtrain_api.resume import ResumeFrom
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding, RunConfig
from gymtrain_trainer.checkpoints.folder import (
    BEST,
    Checkpoint,
    SetAside,
    best_checkpoint,
    last_checkpoint,
    whole_checkpoints,
)
from gymtrain_trainer.context import Context
from gymtrain_trainer.errors import ResumeError
from gymtrain_trainer.framework import TrainingSettings

_LISTED = 20  # names of a message
_SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class Start:
    """Where training begins.

    Attributes:
        resumed: the checkpoint is an earlier run's.
    """

    checkpoint: Checkpoint | None = None
    resumed: bool = False


def start_of(context: Context, settings: TrainingSettings) -> Start:
    """Where this process begins.

    Raises:
        ResumeError: spec.resumeFrom names no checkpoint that this run could resume from.
    """
    spec = context.run.spec
    if spec.trainer.checkpoint is None:
        return Start()
    own = last_checkpoint(context.run_folder, context.owner)
    source = resume_from(spec)
    if own is not None or source is None:
        return Start(own)
    base = context.run_folder if source.run == context.run.name else context.paths.resume / source.run
    found = find(base, source, volume_of(spec, source))
    if problem := misfit(found, spec, context.paths.model, settings):
        raise ResumeError(f"spec.resumeFrom: {problem}")
    return Start(found, resumed=True)


def resume_from(spec: GymTrainingRunSpec) -> ResumeFrom | None:
    """The parsed spec.resumeFrom."""
    return ResumeFrom.parse(spec.resume_from) if spec.resume_from else None


def check_resume(run: RunConfig, runs: Path, model: Path, settings: TrainingSettings) -> list[Finding]:
    """Preflight's look at spec.resumeFrom. `runs`: folders of checkpoints, by run."""
    spec = run.spec
    source = resume_from(spec)
    if source is None or spec.trainer.checkpoint is None:
        return []
    if last_checkpoint(runs / run.name, run.lineage or run.uid):
        return []  # it has gone on already (it was restored from a backup), and the other checkpoint may be gone
    try:
        problem = misfit(find(runs / source.run, source, volume_of(spec, source)), spec, model, settings)
    except ResumeError as error:
        problem = str(error).removeprefix("spec.resumeFrom: ")
    return [Finding(where="spec.resumeFrom", message=problem)] if problem else []


def find(base: Path, source: ResumeFrom, volume: str) -> Checkpoint:
    """The checkpoint that `source` names, in `base`, the folder of its run.

    Raises:
        ResumeError: it isn't there, or is not whole; the message lists what is.
    """
    return find_all(base, source, volume, "spec.resumeFrom")[-1]


def find_all(base: Path, source: ResumeFrom, volume: str, field: str) -> list[Checkpoint]:
    """All checkpoints that `source` names, by step, in `base`, the folder of its run; `field` says so.

    Raises:
        ResumeError: there is none that is whole; the message lists what is there.
    """
    folder = base / source.previous if source.previous else base
    if source.best:
        wanted = [best] if (best := best_checkpoint(folder)) is not None else []
    else:
        wanted = [one for one in whole_checkpoints(folder) if source.step in (None, one.state.step)]
    if wanted:
        return wanted
    name = BEST if source.best else f"checkpoint-{source.step}" if source.step is not None else "checkpoint"
    there = list(_listed(base, source.run))
    # Beside the folder of this run are those of others, where the volume is a user's and seen as a whole.
    there = there or [name for other in _folders(base.parent) for name in _listed(base.parent / other, other)]
    more = f" and {len(there) - _LISTED} more" if len(there) > _LISTED else ""
    what = f"there are {', '.join(there[:_LISTED])}{more}" if there else "there is no whole checkpoint at all"
    raise ResumeError(f"{field}: no whole {name} in folder {source.folder} of {volume}; {what}")


def misfit(checkpoint: Checkpoint, spec: GymTrainingRunSpec, model: Path, settings: TrainingSettings) -> str:
    """Why the run can't continue from a checkpoint; empty if it can."""
    name, step, steps = checkpoint.folder.name, checkpoint.state.step, settings.max_steps
    if steps is not None and step >= steps:
        return (
            f"{name} is at step {step}, and the run ends at step {steps}: raise spec.trainer.config.max_steps, which "
            "counts from the earlier run's start"
        )
    adapter = (checkpoint.folder / "adapter_config.json").exists()
    if adapter != (spec.model.lora is not None):
        holds, wants = ("an adapter", "all weights") if adapter else ("all weights", "an adapter")
        return f"{name} holds {holds}, and the run trains {wants}: use the earlier run's spec.model.lora"
    kinds = checkpoint.state.kind, settings.checkpoint_kind
    if all(kinds) and kinds[0] != kinds[1]:
        return f"{name} was written {kinds[0]}, and this run reads what is written {kinds[1]}: use the earlier run's"
    return other_model(checkpoint, model)


def other_model(checkpoint: Checkpoint, model: Path) -> str:
    """How the checkpoint's model differs from the one in the folder `model`; empty if it doesn't, or isn't known."""
    ours, theirs = _config(model), _config(checkpoint.folder)
    other = [key for key in _SHAPE if key in ours and key in theirs and ours[key] != theirs[key]]
    parts = ", ".join(f"{key} {theirs[key]} (spec.model: {ours[key]})" for key in other)
    return f"{checkpoint.folder.name} is of another model than spec.model: {parts}" if other else ""


def volume_of(spec: GymTrainingRunSpec, source: ResumeFrom) -> str:
    """The volume that `source` is on, as the user knows it."""
    checkpoint = spec.trainer.checkpoint
    claim = checkpoint.claim_name if checkpoint else None
    return f"PersistentVolumeClaim {claim or names.checkpoint_volume(source.run)}"


def told_aside(run: str, aside: SetAside, volume: str) -> str:
    """The notice about checkpoints that were moved."""
    what = ", ".join(aside.names[:_LISTED])
    return (
        f"the checkpoint folder of this run on {volume} held {what} of an earlier run, which are now in its folder "
        f"{aside.folder}. To resume from them, delete this run and apply it with spec.resumeFrom: "
        f"{run}/{aside.folder}"
    )


def told_resumed(start: Checkpoint, source: ResumeFrom, *, same_data: bool) -> str:
    """The notice about where the run resumed."""
    place = (
        f"in the data at position {start.state.position}, as it is the earlier run's"
        if same_data
        else "the data differs from the earlier run's and is drawn from its start"
    )
    return f"goes on from {source.folder}/{start.folder.name} (spec.resumeFrom), after step {start.state.step}; {place}"


def _listed(base: Path, run: str) -> Iterator[str]:
    for folder in ("", *(name for name in _folders(base) if name.startswith("previous-"))):
        best = best_checkpoint(base / folder)
        for checkpoint in [*whole_checkpoints(base / folder), *([best] if best is not None else [])]:
            yield "/".join(part for part in (run, folder, checkpoint.folder.name) if part)


def _folders(base: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(base) if entry.is_dir())
    except OSError:
        return []


def _config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}  # a hub's model isn't fetched in preflight, and an adapter's folder has none
    return config if isinstance(config, dict) else {}
