"""Where this process stands: the run, the attempt, its place among the nodes, and its folders.

The defaults are the paths of the wiring contract. Environment variables replace them for a run outside a pod:

| variable | replaces |
|---|---|
| GYMTRAIN_RUN_CONFIG | /etc/gymtrain/run/run.json |
| GYMTRAIN_ROOT | /gymtrain, above model, data, checkpoints and scratch |
| GYMTRAIN_TERMINATION_LOG | /dev/termination-log |
| GYMTRAIN_TRAINER_PORT | 8080 |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gymtrain_api import names, wiring
from gymtrain_api.runs import parse_run_config
from gymtrain_trainer.errors import SettingsError

_ROOT = Path("/gymtrain")


@dataclass(frozen=True)
class Paths:
    """Files and folders of the pod."""

    model: Path
    data_index: Path
    checkpoints: Path
    resume: Path  # checkpoints of other runs, by run
    scratch: Path
    termination_log: Path


@dataclass(frozen=True)
class Context:
    """What one trainer process knows before it starts."""

    run: wiring.RunConfig
    paths: Paths
    attempt: int
    nodes: int
    node_rank: int
    port: int

    @property
    def processes(self) -> int:
        """Training processes of all nodes."""
        return self.nodes * self.run.spec.trainer.processes_per_node

    @property
    def run_folder(self) -> Path:
        """Where checkpoints, TensorBoard files and rewards.csv go; the volume's folder of this run is mounted there."""
        return self.paths.checkpoints

    @property
    def owner(self) -> str:
        """uid that this run's checkpoints carry: its own, or that of the run it was restored from."""
        return self.run.lineage or self.run.uid

    @property
    def master_host(self) -> str:
        """DNS name of node 0 of this attempt."""
        return f"{names.trainer_job(self.run.name, self.attempt)}-0.{self.run.trainer_host}"


def read_run_config(environ: Mapping[str, str]) -> wiring.RunConfig:
    """The run's own settings.

    Raises:
        SettingsError: the file is missing or of another version.
    """
    path = Path(environ.get(wiring.ENV_RUN_CONFIG, wiring.RUN_CONFIG_FILE))
    try:
        return parse_run_config(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}. It is the ConfigMap <run>-run") from error
    except ValidationError as error:
        raise SettingsError(
            f"{path} doesn't fit this image ({error.error_count()} errors, the first: {error.errors()[0]['msg']} at "
            f"{'.'.join(map(str, error.errors()[0]['loc']))}). Operator and trainer image must be of one release"
        ) from error


def read_paths(environ: Mapping[str, str]) -> Paths:
    """Folders of the pod, moved below GYMTRAIN_ROOT where that is set."""
    root = Path(environ.get(wiring.ENV_ROOT, str(_ROOT)))

    def moved(path: str) -> Path:
        return root / Path(path).relative_to(_ROOT)

    return Paths(
        model=moved(wiring.MODEL_DIR),
        data_index=moved(wiring.DATA_INDEX_FILE),
        checkpoints=moved(wiring.CHECKPOINT_DIR),
        resume=moved(wiring.RESUME_DIR),
        scratch=moved(wiring.SCRATCH_DIR),
        termination_log=Path(environ.get(wiring.ENV_TERMINATION_LOG, wiring.TERMINATION_LOG)),
    )


def read_context(environ: Mapping[str, str] = os.environ) -> Context:
    """The context of this process.

    Raises:
        SettingsError: run.json is unreadable or a number in the environment isn't one.
    """

    def number(name: str, default: int) -> int:
        text = environ.get(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise SettingsError(f"environment variable {name} is {text!r}, not a number") from None

    run = read_run_config(environ)
    return Context(
        run=run,
        paths=read_paths(environ),
        attempt=number(wiring.ENV_ATTEMPT, 1),
        nodes=number(wiring.ENV_NODES, run.spec.trainer.nodes),
        node_rank=number(wiring.ENV_NODE_RANK, 0),
        port=number(wiring.ENV_TRAINER_PORT, wiring.TRAINER_PORT),
    )
