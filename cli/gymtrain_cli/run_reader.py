"""Reading runs and their logs from the cluster. The command line writes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod

from gymtrain_api import labels
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_cli.errors import CliError, RunNotFoundError, UnavailableError

_Run = create_namespaced_resource(labels.GROUP, labels.VERSION, labels.KIND, labels.PLURAL)
_TOO_MANY_REQUESTS = 429
_TEXT_LIMIT = 200  # characters of an answer that is no Status: a proxy's page


class RunReader:
    """Read access to the runs of one namespace."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        """Connects like kubectl: by KUBECONFIG, ~/.kube/config, or the pod's own account.

        Raises:
            CliError: there is no usable kubeconfig, or no such context.
        """
        try:
            config = KubeConfig.from_env().get(context_name=context)
        except ConfigError as error:
            raise CliError(f"no usable kubeconfig: {error}. Set KUBECONFIG or pass --context.") from error
        if config is None:
            raise CliError(f"the kubeconfig has no context {context!r}: see `kubectl config get-contexts`")
        self._client = Client(config=config, namespace=namespace)
        self.namespace = self._client.namespace

    def status(self, run: str) -> GymTrainingRunStatus:
        """Reads the status of a run; empty while the operator hasn't seen it.

        Raises:
            RunNotFoundError: there is no such run, or the cluster doesn't know the kind.
            UnavailableError: the API server doesn't answer, or not now.
            CliError: it refuses.
        """
        with _reading(f"run {run}"):
            try:
                found = self._client.get(_Run, run)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 404:
                    raise
                raise RunNotFoundError(
                    f"no GymTrainingRun {run!r} in namespace {self.namespace!r}: see `kubectl get gtr -A`; "
                    "if that kind is unknown, install the operator with helm"
                ) from error
        return GymTrainingRunStatus.model_validate(found.get("status") or {})

    def trainer_logs(self, run: str) -> Iterator[str]:
        """Reads the log lines of the first trainer pod of each attempt that still has one, oldest attempt first.

        Raises:
            UnavailableError: the API server doesn't answer, or not now.
            CliError: it refuses.
        """
        selector: dict[str, Any] = {**labels.run_labels(run, labels.Role.TRAINER)}
        pods = []
        with _reading(f"the trainer pods of run {run}"):
            listed = list(self._client.list(Pod, namespace=self.namespace, labels=selector))
        for pod in listed:
            meta = pod.metadata
            if meta is None or meta.name is None:
                continue
            found = meta.labels or {}
            if found.get("batch.kubernetes.io/job-completion-index", "0") == "0":
                pods.append((int(found.get(labels.ATTEMPT, "1")), meta.name))
        for _, name in sorted(pods):
            with _reading(f"the log of pod {name}"):
                try:
                    lines = self._client.log(name, container="trainer")
                except httpx.HTTPStatusError as error:
                    # A pod that hasn't started has no log; the other attempts' logs still count.
                    if error.response.status_code not in (400, 404):
                        raise
                    continue
            yield from lines


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turns what lightkube raises into errors of the command line."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        said = str(error) if isinstance(error, ApiError) else error.response.text.strip()[:_TEXT_LIMIT]
        if code == _TOO_MANY_REQUESTS or code >= 500:
            raise UnavailableError(f"reading {what}", f"HTTP {code}: {said}") from error
        raise CliError(f"reading {what}: HTTP {code}: {said}") from error
    except (httpx.HTTPError, ConfigError, OSError) as error:  # the last two: a kubeconfig's program for credentials
        raise UnavailableError(f"reading {what}", f"{type(error).__name__}: {error}") from error
