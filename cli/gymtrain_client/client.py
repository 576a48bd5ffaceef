"""`Client` and `Run`: what a notebook uses."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_client import report
from gymtrain_client.cluster import Cluster, Object
from gymtrain_client.errors import ClientError, ManifestError, RunFailedError, UnavailableError, WatchDeadlineError
from gymtrain_client.files import Progress, fetch
from gymtrain_client.steps import Step, parse_steps

if TYPE_CHECKING:
    from pandas import DataFrame

_POLL_SECONDS = 1.0
_AGAIN_SECONDS = 5.0  # after the API server did not answer
_SHARDS_INDEX = "batch.kubernetes.io/job-completion-index"


def runs_in(file: Path) -> list[Object]:
    """The GymTrainingRuns of a YAML file.

    Raises:
        ManifestError: it can't be read, or holds none.
    """
    import yaml

    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ManifestError(f"{file} can't be read: {error}") from error
    runs = [one for one in documents if isinstance(one, dict) and one.get("kind") == labels.KIND]
    if not runs:
        raise ManifestError(f"{file} holds no {labels.KIND}: see examples/quickstart.yaml")
    if any(not isinstance(one.get("metadata"), dict) or not isinstance(one.get("spec"), dict) for one in runs):
        raise ManifestError(f"a {labels.KIND} of {file} lacks metadata or spec: see examples/quickstart.yaml")
    return runs


class Client:
    """The runs of one namespace."""

    def __init__(self, context: str | None = None, namespace: str | None = None, kubeconfig: str | None = None) -> None:
        """Finds the cluster as kubectl does.

        Raises:
            ClientError: there is no usable kubeconfig, or no such context.
        """
        self.cluster = Cluster(context, namespace, kubeconfig)

    def submit(self, run: str | Path | Mapping[str, Any]) -> "Run":
        """Creates a run: of a YAML file with one, or of the object itself.

        Raises:
            ManifestError: the file holds none, or several.
            ClientError: the API server refuses it, or doesn't answer.
        """
        if isinstance(run, Mapping):
            wanted: Object = dict(run)
        else:
            found = runs_in(Path(run))
            if len(found) > 1:
                raise ManifestError(f"{run} holds {len(found)} runs: submit them one by one")
            wanted = found[0]
        metadata = {key: value for key, value in wanted["metadata"].items() if key != "namespace"}
        made = self.cluster.create_run(wanted | {"metadata": metadata})
        return Run(self.cluster, made["metadata"]["name"])

    def get(self, name: str) -> "Run":
        """A run that is there; raises ClientError where it isn't."""
        self.cluster.run(name)
        return Run(self.cluster, name)

    def list(self) -> list["Run"]:
        """All runs of the namespace, by name."""
        return [Run(self.cluster, name) for name in self.cluster.run_names()]


class Run:
    """One GymTrainingRun. Every call asks the cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def __repr__(self) -> str:
        return f"Run({self.cluster.namespace}/{self.name})"

    @property
    def status(self) -> GymTrainingRunStatus:
        """Its status; empty while the operator hasn't seen it."""
        return GymTrainingRunStatus.model_validate(self.cluster.run(self.name).get("status") or {})

    def wait(
        self,
        timeout: float = 7 * 24 * 3600,
        *,
        on_status: Callable[[GymTrainingRunStatus], None] = lambda status: None,
    ) -> GymTrainingRunStatus:
        """Waits until it is Complete, asking each second. An API server that has answered once may be away for a while.

        Raises:
            RunFailedError: it is Failed; the message says why.
            WatchDeadlineError: neither within `timeout` seconds.
            ClientError: the run isn't there, or the API server never answered.
        """
        limit, status = time.monotonic() + timeout, None
        while True:
            try:
                status = self.status
            except UnavailableError:
                if status is None or time.monotonic() > limit:
                    raise
                time.sleep(_AGAIN_SECONDS)
                continue
            on_status(status)
            if status.is_true(ConditionType.COMPLETE):
                return status
            if status.is_true(ConditionType.FAILED):
                failed = status.condition(ConditionType.FAILED)
                raise RunFailedError(f"{self.name}: {failed.message if failed else 'it failed'}")
            if time.monotonic() > limit:
                raise WatchDeadlineError(f"{self.name} did not end within {timeout:g} s; it continues")
            time.sleep(_POLL_SECONDS)

    def trainer_log(self) -> Iterator[str]:
        """Lines of the first trainer pod of each attempt that still has one, oldest attempt first."""
        pods = []
        for pod in self.cluster.pods(labels.run_labels(self.name, labels.Role.TRAINER)):
            marks = pod["metadata"].get("labels") or {}
            if marks.get(_SHARDS_INDEX, "0") == "0":
                pods.append((int(marks.get(labels.ATTEMPT, "1")), pod["metadata"]["name"]))
        for _, name in sorted(pods):
            yield from self.cluster.log(name, "trainer")

    def steps(self) -> list[Step]:
        """The steps that its trainer pods have told."""
        return parse_steps(self.trainer_log())

    def metrics(self) -> "DataFrame":
        """A row for each step, by step: reward, staleness, tokens and what else its line says.

        Raises:
            ClientError: pandas isn't installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ClientError("metrics() needs pandas: pip install pandas") from error
        rows = [dict(step.values) for step in self.steps()]
        return pd.json_normalize(rows).set_index("step") if rows else pd.DataFrame()

    def fetch(self, name: str, output: str | Path = ".", progress: Progress = lambda done, total: None) -> Path:
        """Copies model, best, checkpoint-N, records or a file of the run's folder to the folder `output`."""
        return fetch(self.cluster, self.name, name, Path(output), progress)

    def report(
        self, output: str | Path, max_mib: int = 50, progress: Callable[[int], None] = lambda done: None
    ) -> tuple[Path, str]:
        """Writes its report as one HTML file of at most `max_mib` MiB; the file, and what it says of its sample.

        Raises:
            ReportError: there is nothing to report yet.
            FolderError: the run keeps no files, or no pod can read them.
        """
        return report.write(self.cluster, self.name, Path(output), max_mib, progress)

    def serve_report(
        self, port: int = 0, ready: Callable[[str], None] = print, end: threading.Event | None = None
    ) -> None:
        """Serves its report on a port of this machine, live, until `end` is set; raises as `report` does.

        Args:
            port: 0 for any that is free.
            ready: told the page's address.
            end: for another thread to set; without it, it serves until the process ends.
        """
        report.serve(self.cluster, self.name, port, ready, end or threading.Event())

    def rollouts(
        self,
        *,
        search: str = "",
        outcome: str | None = None,
        agent: str | None = None,
        step: int | None = None,
        limit: int = 100,
    ) -> Iterator[dict[str, Any]]:
        """Recorded rollouts, oldest first, as docs/records.md has their columns; raises as `report` does.

        Args:
            search: words that all have to occur in it.
            outcome: such as trained, dropped or lost.
            agent: of its row.
            step: that it belongs to.
            limit: how many at most.
        """
        chosen = {"search": search or None, "outcome": outcome, "agent": agent, "step": step, "limit": limit}
        options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
        return report.rollouts(self.cluster, self.name, options)

    def suspend(self) -> None:
        """Stops it; its pods go, and it can be resumed from its last checkpoint."""
        self.cluster.patch_run(self.name, {"spec": {"suspend": True}})

    def resume(self) -> None:
        """Lets it go on."""
        self.cluster.patch_run(self.name, {"spec": {"suspend": False}})

    def delete(self) -> None:
        """Deletes it, with what it owns."""
        self.cluster.delete_run(self.name)
