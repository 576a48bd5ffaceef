"""What the command line reads from the cluster. It writes nothing."""

from collections.abc import Iterator
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod

from gymtrain_api import labels
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_cli.errors import CliError, RunNotFoundError

_Run = create_namespaced_resource(labels.GROUP, labels.VERSION, labels.KIND, labels.PLURAL)


class Cluster:
    """Read access to the runs of one namespace."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        """Connects as kubectl would: KUBECONFIG, ~/.kube/config, or the pod's own account.

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
        """The status of a run; empty while the operator hasn't seen it.

        Raises:
            RunNotFoundError: there is no such run, or the cluster doesn't know the kind.
        """
        try:
            found = self._client.get(_Run, run)
        except ApiError as error:
            if error.status.code != 404:
                raise CliError(f"reading run {run}: {error}") from error
            raise RunNotFoundError(
                f"no GymTrainingRun {run!r} in namespace {self.namespace!r}: see `kubectl get gtr -A`; "
                "if that kind is unknown, install the operator with helm"
            ) from error
        return GymTrainingRunStatus.model_validate(found.get("status") or {})

    def trainer_logs(self, run: str) -> Iterator[str]:
        """Log lines of the first trainer pod of each attempt that still has one, oldest attempt first."""
        selector: dict[str, Any] = {**labels.run_labels(run, labels.Role.TRAINER)}
        pods = []
        for pod in self._client.list(Pod, namespace=self.namespace, labels=selector):
            meta = pod.metadata
            if meta is None or meta.name is None:
                continue
            found = meta.labels or {}
            if found.get("batch.kubernetes.io/job-completion-index", "0") == "0":
                pods.append((int(found.get(labels.ATTEMPT, "1")), meta.name))
        for _, name in sorted(pods):
            try:
                yield from self._client.log(name, container="trainer")
            except ApiError as error:
                # A pod that hasn't started has no log; the other attempts' logs still count.
                if error.status.code not in (400, 404):
                    raise CliError(f"reading the log of pod {name}: {error}") from error
