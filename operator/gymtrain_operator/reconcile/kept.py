"""Names that a run keeps from the release that began it, so that an upgrade never makes a second set of its objects."""

from gymtrain_api import labels, names
from gymtrain_operator.manifests.context import KeptNames, RunContext
from gymtrain_operator.reconcile.changes import Changes, Deletion
from gymtrain_operator.reconcile.observation import Children, is_deleting, labels_of, name_of


def kept_names(children: Children, run: str) -> KeptNames:
    """The names as the run's Services have them, which stay until the run is deleted, also while it is suspended."""
    services = [one for one in children.of("Service") if not is_deleting(one)]
    servers = {labels_of(one)[labels.SERVER]: name_of(one) for one in services if labels.SERVER in labels_of(one)}
    broker = next((one for one in services if name_of(one) == names.broker(run)), None)
    if broker is None:
        return KeptNames(servers)
    notes = broker["metadata"].get("annotations") or {}
    # Before it was noted the identity had the name of the Service.
    return KeptNames(servers, notes.get(labels.BROKER_IDENTITY) or names.broker(run))


def outdated_policies(children: Children, run: RunContext) -> Changes:
    """The fence that had the run's own name, once the one that took its place stands."""
    old, new = (children.get("NetworkPolicy", name) for name in (run.name, names.network_policy(run.name)))
    if old is None or new is None or is_deleting(old):
        return Changes()
    return Changes(delete=(Deletion.of(old),))
