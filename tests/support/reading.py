"""Reading objects without a process for each: what waits asks every second, and kubectl takes 0.1 s of a core."""

from typing import Any

import httpx2 as httpx
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig

_PLURALS = {
    "gymtrainingrun": "apis/gymtrain.dev/v1alpha1/namespaces/{}/gymtrainingruns",
    "pod": "api/v1/namespaces/{}/pods",
    "deployment": "apis/apps/v1/namespaces/{}/deployments",
    "job": "apis/batch/v1/namespaces/{}/jobs",
}
_SECONDS = 60.0


class KubectlError(AssertionError):
    """A command or a reading failed; the message is what kubectl says."""


class Reader:
    """Objects of one namespace, over one connection."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self._kubeconfig, self._namespace = kubeconfig, namespace
        self._client: httpx.Client | None = None

    @staticmethod
    def knows(kind: str) -> bool:
        """Whether objects of a kind can be read here; singular or plural."""
        return kind.removesuffix("s") in _PLURALS

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object.

        Raises:
            KubectlError: it isn't there, or can't be read.
        """
        return self._ask(f"{self._path(kind)}/{name}", {})

    def list(self, kind: str, selector: str | None = None) -> list[dict[str, Any]]:
        """Objects of one kind.

        Raises:
            KubectlError: they can't be read.
        """
        found = self._ask(self._path(kind), {"labelSelector": selector} if selector else {})
        own = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [own | item for item in found["items"]]

    def _path(self, kind: str) -> str:
        return _PLURALS[kind.removesuffix("s")].format(self._namespace)

    def _ask(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        answer = self._answer(path, query)
        content: dict[str, Any] = answer.json()
        if answer.status_code != 200:
            raise KubectlError(f"{path}: Error from server ({content.get('reason')}): {content.get('message')}")
        return content

    def _answer(self, path: str, query: dict[str, str]) -> httpx.Response:
        if self._client is None:
            config = KubeConfig.from_file(self._kubeconfig).get()
            assert config is not None, f"{self._kubeconfig} has no current context"
            self._client = Client(config, ConnectionParams(timeout=httpx.Timeout(_SECONDS), trust_env=False))
        try:
            return self._client.get(f"/{path}", params=query)
        except httpx.TransportError:  # the server closed the connection that was kept
            return self._client.get(f"/{path}", params=query)
