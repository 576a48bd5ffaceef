"""One namespace of a cluster, by Kubernetes' official client: every way to authenticate that a kubeconfig knows."""

import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gymtrain_api import labels
from gymtrain_client.errors import ClientError, RefusedError, RunNotFoundError, UnavailableError

_CONNECT_SECONDS, _READ_SECONDS = 10.0, 60.0
_QUIET_SECONDS = 3600.0  # of a log that is followed
_POD_SECONDS = 30.0  # until there is a connection to a pod
_FRAME_SECONDS = 120.0  # in the midst of what a command writes
_PATIENCE_SECONDS = 30.0
_AGAIN_SECONDS = 2.0
_TOO_MANY_REQUESTS = 429
_TEXT_LIMIT = 400  # characters of an answer that is no Status: a proxy's page
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_PAGE = 500  # pods of an answer
_LINE_LIMIT = 1 << 20  # bytes of a log's line

type Object = dict[str, Any]


@dataclass(frozen=True)
class LogOptions:
    """Which part of a log, as `kubectl logs` has it."""

    follow: bool = False
    since_seconds: int | None = None
    tail: int | None = None
    previous: bool = False
    timestamps: bool = False


class Cluster:
    """What the client needs of the API server. Every call has a deadline."""

    def __init__(self, context: str | None = None, namespace: str | None = None, kubeconfig: str | None = None) -> None:
        """Connects like kubectl: by KUBECONFIG, ~/.kube/config, or the pod's own account.

        Raises:
            ClientError: there is no usable kubeconfig, or no such context.
        """
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException

        settings = client.Configuration()
        settings.retries = 0  # whoever asks knows best whether to ask again
        settings.keep_alive = True  # of TCP: a log that is followed may be silent, or its connection lost
        # The official client reads the variable when it is imported, which may be long ago.
        files = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
        inside = context is None and _OWN_NAMESPACE.exists() and not any(map(os.path.exists, files.split(os.pathsep)))
        try:
            if inside:
                config.load_incluster_config(client_configuration=settings)
                own = _OWN_NAMESPACE.read_text().strip()
            else:
                config.load_kube_config(files, context, client_configuration=settings)
                own = _namespace_of(config.list_kube_config_contexts(files), context)
        except (ConfigException, OSError) as error:
            raise ClientError(f"no usable kubeconfig: {error}. Set KUBECONFIG or pass --context.") from error
        self.namespace = namespace or own or "default"
        self._api = client.ApiClient(settings)
        self._core = client.CoreV1Api(self._api)
        self._custom = client.CustomObjectsApi(self._api)
        self._kind = (labels.GROUP, labels.VERSION, self.namespace, labels.PLURAL)
        self._settings = settings
        self._deadlines = {"_request_timeout": (_CONNECT_SECONDS, _READ_SECONDS)}

    # --- runs ---

    def run(self, name: str) -> Object:
        """A GymTrainingRun.

        Raises:
            RunNotFoundError: there is no such run, or the cluster doesn't know the kind.
            UnavailableError: the API server doesn't answer, or not now.
            RefusedError: it refuses.
        """
        with self._asking(f"reading run {name}", run=name):
            found: Object = self._custom.get_namespaced_custom_object(*self._kind, name, **self._deadlines)
        return found

    def run_names(self) -> list[str]:
        """Names of the runs; raises as `run` does."""
        with self._asking("listing the runs"):
            found = self._custom.list_namespaced_custom_object(*self._kind, **self._deadlines)
        return sorted(one["metadata"]["name"] for one in found["items"])

    def create_run(self, run: Object, *, dry_run: bool = False) -> Object:
        """Creates it, or only lets the API server check it; raises as `run` does."""
        only = {"dry_run": "All"} if dry_run else {}
        with self._asking(f"creating run {run['metadata'].get('name', '')}"):
            made: Object = self._custom.create_namespaced_custom_object(
                *self._kind, run, field_validation="Strict", **only, **self._deadlines
            )
        return made

    def patch_run(self, name: str, patch: Mapping[str, Any]) -> Object:
        """Merges `patch` into it; raises as `run` does."""
        with self._asking(f"changing run {name}", run=name):
            changed: Object = self._custom.patch_namespaced_custom_object(
                *self._kind, name, dict(patch), _content_type="application/merge-patch+json", **self._deadlines
            )
        return changed

    def delete_run(self, name: str) -> None:
        """Deletes it, and what it owns in the background; raises as `run` does."""
        with self._asking(f"deleting run {name}", run=name):
            self._custom.delete_namespaced_custom_object(
                *self._kind, name, propagation_policy="Background", **self._deadlines
            )

    # --- pods ---

    def pods(self, selector: Mapping[str, str]) -> list[Object]:
        """Pods with these labels; raises as `run` does, but for RunNotFoundError."""
        text = ",".join(f"{name}={value}" for name, value in selector.items())
        found: list[Object] = []
        more: dict[str, Any] = {}
        with self._asking(f"listing the pods {text}"):
            while True:
                page = self._core.list_namespaced_pod(
                    self.namespace, label_selector=text, limit=_PAGE, **more, **self._deadlines
                )
                found += [self._plain(pod) for pod in page.items]
                if not page.metadata._continue:
                    return found
                more = {"_continue": page.metadata._continue}

    def create_pod(self, pod: Object) -> Object:
        """Creates it; raises as `pods` does."""
        with self._asking("creating a pod"):
            return self._plain(self._core.create_namespaced_pod(self.namespace, pod, **self._deadlines))

    def pod(self, name: str) -> Object:
        """A pod; raises as `pods` does."""
        with self._asking(f"reading pod {name}"):
            return self._plain(self._core.read_namespaced_pod(name, self.namespace, **self._deadlines))

    def delete_pod(self, name: str) -> None:
        """Deletes it at once; raises as `pods` does."""
        with self._asking(f"deleting pod {name}"):
            self._core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0, **self._deadlines)

    def log(self, pod: str, container: str, options: LogOptions | None = None) -> Iterator[str]:
        """Lines of a container's log; none where the container hasn't started. Raises as `pods` does.

        A line of more than a MiB is cut.
        """
        chosen = options or LogOptions()
        wanted = {
            "follow": chosen.follow,
            "since_seconds": chosen.since_seconds,
            "tail_lines": chosen.tail,
            "previous": chosen.previous,
            "timestamps": chosen.timestamps,
        }
        given = {name: value for name, value in wanted.items() if value not in (None, False)}
        deadlines = (_CONNECT_SECONDS, _QUIET_SECONDS) if chosen.follow else (_CONNECT_SECONDS, _READ_SECONDS)
        try:
            with self._asking(f"reading the log of pod {pod}"):
                answer = self._core.read_namespaced_pod_log(
                    pod,
                    self.namespace,
                    container=container,
                    _preload_content=False,
                    _request_timeout=deadlines,
                    **given,
                )
                try:
                    yield from _lines(answer)
                finally:
                    answer.release_conn()
        except RefusedError as error:
            # A pod that hasn't started has no log; one that is gone has none any more.
            if error.code not in (400, 404):
                raise

    def exec(self, pod: str, container: str, command: Sequence[str], *, stdin: bool = False) -> Any:
        """A running command, as kubernetes.stream's WSClient that reads bytes; raises as `pods` does.

        `stdin`: it has a standard input, which ends with the connection.
        """
        from kubernetes.stream import stream

        with self._asking(f"running a command in pod {pod}"):
            process = self._connected(
                lambda core: stream(
                    core.connect_get_namespaced_pod_exec,
                    pod,
                    self.namespace,
                    container=container,
                    command=list(command),
                    stderr=True,
                    stdin=stdin,
                    stdout=True,
                    tty=False,
                    binary=True,
                    _preload_content=False,
                )
            )
        process.sock.settimeout(_FRAME_SECONDS)
        return process

    def connect(self, pod: str, port: int) -> Any:
        """A connection to that port of the pod's loopback address, as a socket; raises as `pods` does."""
        from kubernetes.stream import portforward

        with self._asking(f"connecting to port {port} of pod {pod}"):
            forwarding = self._connected(
                lambda core: portforward(
                    core.connect_get_namespaced_pod_portforward, pod, self.namespace, ports=str(port)
                )
            )
            return forwarding.socket(port)

    def _connected(self, connect: Callable[[Any], Any]) -> Any:
        """A connection to a pod, for which the official client has no deadline: in a thread, which is left behind.

        It changes its API client while it connects, so each connection has its own.
        """
        from kubernetes import client

        core = client.CoreV1Api(client.ApiClient(self._settings))
        made: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            try:
                made.put(connect(core))
            except Exception as error:
                made.put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            found = made.get(timeout=_POD_SECONDS)
        except queue.Empty:
            raise TimeoutError(f"there is no connection after {_POD_SECONDS:g} s") from None
        if isinstance(found, Exception):
            raise found
        return found

    def _plain(self, found: Any) -> Object:
        plain: Object = self._api.sanitize_for_serialization(found)
        return plain

    @contextmanager
    def _asking(self, what: str, *, run: str = "") -> Iterator[None]:
        """Turns what the official client raises into errors of this package."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            self._refused(error, what, run)
        except (HTTPError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise UnavailableError(what, f"{type(reason).__name__}: {reason}") from error

    def _refused(self, error: Any, what: str, run: str) -> NoReturn:
        code, said = int(error.status or 0), _message(error)
        if run and code == 404:
            raise RunNotFoundError(
                f"no GymTrainingRun {run!r} in namespace {self.namespace!r}: see `kubectl get gtr -A`; "
                "if that kind is unknown, install the operator with helm"
            ) from error
        if not code or code == _TOO_MANY_REQUESTS or code >= 500:
            raise UnavailableError(what, f"HTTP {code}: {said}" if code else said) from error
        raise RefusedError(what, code, said) from error


def patiently(call: Callable[[], None]) -> None:
    """Makes a call that must not be left out: again and again while the API server doesn't answer.

    Raises:
        UnavailableError: it hasn't for half a minute.
    """
    limit = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return call()
        except UnavailableError:
            if time.monotonic() > limit:
                raise
            time.sleep(_AGAIN_SECONDS)


def _namespace_of(contexts: tuple[list[Object], Object], name: str | None) -> str:
    found = next((one for one in contexts[0] if one["name"] == name), contexts[1]) if name else contexts[1]
    return str(found["context"].get("namespace") or "")


def _message(error: Any) -> str:
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or error.reason)
    try:
        said = json.loads(body).get("message")
    except (ValueError, AttributeError):
        said = None
    return str(said or body).strip()[:_TEXT_LIMIT]


def _lines(answer: Any) -> Iterator[str]:
    rest = b""
    for chunk in itertools.chain(answer.stream(1 << 16, decode_content=False), (None,)):
        *whole, rest = (rest + chunk).split(b"\n") if chunk is not None else (rest, b"")
        if len(rest) > _LINE_LIMIT:
            whole, rest = [*whole, rest[:_LINE_LIMIT]], b""
        if chunk is None and not whole[0]:
            return
        for line in whole:
            yield line.decode(errors="replace")
