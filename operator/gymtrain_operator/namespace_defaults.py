"""Reading what a namespace has for all of its runs: its GymTrainingDefaults, and what its quotas require.

A run that starts is looked at several times, so an answer serves for a few seconds. A run's first look reads anew: who
applies defaults and then a run means these defaults.
"""

from collections.abc import Iterable

from gymtrain_api.defaults import NAME, InvalidDefaultsError, RunDefaults, parse_stored
from gymtrain_api.labels import DEFAULTS_KIND
from gymtrain_kube.errors import NotFoundError, RejectedError
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Object
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.reconcile.observation import NamespaceDefaults

REMEMBER_SECONDS = 5.0
_MOST_NAMESPACES = 1000


class NamespaceReader:
    """Reads the defaults of namespaces."""

    def __init__(self, cluster: KubeClient) -> None:
        self._cluster = cluster
        self._known: dict[str, tuple[float, NamespaceDefaults]] = {}

    async def read(self, namespace: str, now: float, *, afresh: bool = False) -> NamespaceDefaults:
        """Returns the defaults of a namespace, at most REMEMBER_SECONDS old, or as they are now.

        Raises:
            KubeError: the API server doesn't answer.
        """
        at, found = self._known.get(namespace, (0.0, None))
        if found is None or afresh or not 0 <= now - at < REMEMBER_SECONDS:
            found = await self._read(namespace)
            if len(self._known) >= _MOST_NAMESPACES:
                self._known.clear()
            self._known[namespace] = (now, found)
        return found

    async def _read(self, namespace: str) -> NamespaceDefaults:
        required = await self._required_limits(namespace)
        try:
            document = await self._cluster.get(kinds.DEFAULTS, namespace, NAME)
            return NamespaceDefaults(_spec_of(document), required_limits=required)
        except NotFoundError:
            return NamespaceDefaults(required_limits=required)
        except (InvalidDefaultsError, RejectedError) as error:
            where = f"{DEFAULTS_KIND} {NAME} of namespace {namespace}"
            return NamespaceDefaults(error=f"{where} can't be read: {error}", required_limits=required)

    async def _required_limits(self, namespace: str) -> tuple[str, ...]:
        """Lists the resources of which a pod of the namespace needs limits; none where quotas may not be read."""
        try:
            quotas = await self._cluster.list(kinds.RESOURCE_QUOTA, namespace)
        except RejectedError:
            return ()
        return tuple(sorted(set(_limited(quotas))))


def _spec_of(document: Object) -> RunDefaults:
    return parse_stored(document.get("spec") or {}, "spec")


def _limited(quotas: Iterable[Object]) -> Iterable[str]:
    """Yields cpu for a quota of limits.cpu, and so on. A quota's scope isn't asked for: a limit too many harms less
    than a pod that isn't admitted."""
    for quota in quotas:
        for name in (quota.get("spec") or {}).get("hard") or {}:
            prefix, _, resource = str(name).partition("limits.")
            if not prefix and resource:
                yield resource
