"""What the trackers of `report_to` are told about the run, by variables that they or transformers' callbacks read.

Pure. A variable that the user sets (`spec.trainer.env`, or the template) wins, but for those in `_FORCED`.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.context import Context

PROJECT = "gymtrain"
UID_TAG = "gymtrain.uid"
"""Tag of an MLflow run, by which a later attempt finds it."""

_WHERE = "spec.trainer.config.report_to"
_UID_LENGTH = 8  # characters of a uid that tell runs of the same name apart
# Uploads of models from inside the training loop: with a sharded model, collectives that rank 0 would enter alone; and
# hooks in the model. The final model is on the checkpoint volume.
_FORCED = {"WANDB_LOG_MODEL": "false", "WANDB_WATCH": "false"}


def run_label(context: Context) -> str:
    """The run's name for people, and for trackers that know runs by their names alone: as for pods, with a suffix that
    another run of the same name doesn't have. It stays the same over attempts and suspends."""
    return f"{context.run.name}-{context.owner[:_UID_LENGTH]}" if context.owner else context.run.name


def environment(context: Context, given: Mapping[str, str]) -> dict[str, str]:
    """Variables to set where the environment is `given`.

    What trackers write to files goes to the run's folder: it is on the checkpoint volume, where there is one.
    """
    folder = context.run_folder
    defaults = {
        "WANDB_PROJECT": PROJECT,
        "WANDB_RUN_GROUP": context.run.namespace,
        "WANDB_DIR": str(folder),
        "WANDB_CONSOLE": "off",  # the pod's log is kubectl's
        "WANDB_DISABLE_CODE": "true",
        "WANDB_DISABLE_GIT": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_EXPERIMENT_NAME": PROJECT,
        "MLFLOW_TRACKING_URI": (folder / "mlflow").absolute().as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow's other local store needs a database library
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    }
    if context.owner:
        # One run in W&B over all attempts.
        defaults |= {"WANDB_RUN_ID": context.owner, "WANDB_RESUME": "allow"}
    values = {name: value for name, value in defaults.items() if not given.get(name)}
    values["MLFLOW_TAGS"] = _tags(context, given.get("MLFLOW_TAGS", ""))
    return values | _FORCED | {"TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard")}  # transformers has no other way


def _tags(context: Context, given: str) -> str:
    tags = {UID_TAG: context.owner, "gymtrain.run": f"{context.run.namespace}/{context.run.name}"}
    try:
        more = json.loads(given or "{}")
    except ValueError:
        more = {}
    return json.dumps(tags | (more if isinstance(more, dict) else {}))


def reporters_of(spec: GymTrainingRunSpec) -> list[str]:
    """Names in `report_to`; a wrong type counts as none, since preflight reports it."""
    given = spec.trainer.config.get("report_to", ["tensorboard"])
    names = [given] if isinstance(given, str) else given
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def check_reporters(spec: GymTrainingRunSpec, environ: Mapping[str, str], home: Path) -> list[Finding]:
    """Trackers on the network that get no key: preflight has the trainer's environment.

    Args:
        spec: of the run.
        environ: the environment.
        home: where a .netrc may be.
    """
    config, findings = spec.trainer.config, []
    for name in reporters_of(spec):
        if name == "wandb":
            local = environ.get("WANDB_MODE", "online") in {"offline", "disabled", "shared", "dryrun"}
            known = any(environ.get(key) for key in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
            if local or known or (home / ".netrc").exists() or environ.get("NETRC"):
                continue
            findings.append(
                _missing(
                    "wandb",
                    "WANDB_API_KEY",
                    " Or set WANDB_MODE to offline there: W&B then writes to the checkpoint volume, for wandb sync.",
                )
            )
        if name == "trackio":
            space = environ.get("TRACKIO_SPACE_ID") or config.get("trackio_space_id")
            if space and not environ.get("HF_TOKEN"):
                findings.append(_missing(f"trackio, which is to report to the Space {space},", "HF_TOKEN", ""))
    return findings


def _missing(name: str, variable: str, more: str) -> Finding:
    reference = f"{{name: {variable}, valueFrom: {{secretKeyRef: {{name: reporters, key: {variable}}}}}}}"
    message = (
        f"{name} has no key. Make a Secret (kubectl create secret generic reporters --from-literal={variable}=KEY) and "
        f"add to spec.trainer.env: {reference}.{more}"
    )
    return Finding(where=_WHERE, message=message)
