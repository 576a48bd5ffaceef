"""The kinds that the operator reads and writes, and their URL paths."""

from dataclasses import dataclass

from gymtrain_api import agent_sandbox, coscheduling, kueue, labels, leader_worker_set
from gymtrain_kube.objects import Object as Object


@dataclass(frozen=True)
class Kind:
    """A kind. One of the cluster is read without a namespace."""

    name: str
    api: str  # path of the API group and version
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Returns the URL path of the collection or of one object; of all namespaces where `namespace` is None."""
        parts = [self.api, f"namespaces/{namespace}" if namespace else "", self.plural, name, subresource]
        return "/".join(part for part in parts if part)


def lack(kind: Kind) -> str:
    """Says that the cluster doesn't serve a kind of others, and what to do about it."""
    return f"the cluster does not serve {kind.name} of {kind.api.removeprefix('apis/')}: {INSTALL[kind]}"


RUN = Kind(labels.KIND, f"apis/{labels.GROUP}/{labels.VERSION}", labels.PLURAL)
NAMESPACE = Kind("Namespace", "api/v1", "namespaces")
POD = Kind("Pod", "api/v1", "pods")
SERVICE = Kind("Service", "api/v1", "services")
CONFIG_MAP = Kind("ConfigMap", "api/v1", "configmaps")
VOLUME_CLAIM = Kind("PersistentVolumeClaim", "api/v1", "persistentvolumeclaims")
EVENT = Kind("Event", "api/v1", "events")
DEPLOYMENT = Kind("Deployment", "apis/apps/v1", "deployments")
JOB = Kind("Job", "apis/batch/v1", "jobs")
NETWORK_POLICY = Kind("NetworkPolicy", "apis/networking.k8s.io/v1", "networkpolicies")
SECRET = Kind("Secret", "api/v1", "secrets")
SERVICE_ACCOUNT = Kind("ServiceAccount", "api/v1", "serviceaccounts")
DISRUPTION_BUDGET = Kind("PodDisruptionBudget", "apis/policy/v1", "poddisruptionbudgets")
ROLE = Kind("Role", "apis/rbac.authorization.k8s.io/v1", "roles")
ROLE_BINDING = Kind("RoleBinding", "apis/rbac.authorization.k8s.io/v1", "rolebindings")
DEFAULTS = Kind(labels.DEFAULTS_KIND, f"apis/{labels.GROUP}/{labels.VERSION}", labels.DEFAULTS_PLURAL)
RESOURCE_QUOTA = Kind("ResourceQuota", "api/v1", "resourcequotas")
LEASE = Kind("Lease", "apis/coordination.k8s.io/v1", "leases")

# agent-sandbox's, where the cluster serves them.
SANDBOX_CLAIM, SANDBOX_POOL, SANDBOX_TEMPLATE = (
    Kind(name, agent_sandbox.PATH.strip("/"), agent_sandbox.KINDS[name])
    for name in (agent_sandbox.CLAIM, agent_sandbox.POOL, agent_sandbox.TEMPLATE)
)
AGENT_SANDBOX = (SANDBOX_CLAIM, SANDBOX_POOL, SANDBOX_TEMPLATE)

# LWS's, likewise.
LEADER_WORKER_SET = Kind(leader_worker_set.KIND, leader_worker_set.PATH.strip("/"), leader_worker_set.PLURAL)

# That of scheduler-plugins, likewise.
POD_GROUP = Kind(coscheduling.KIND, coscheduling.PATH.strip("/"), coscheduling.PLURAL)

# Kueue's, likewise. Of the cluster: what a Workload's flavors and priority mean.
WORKLOAD = Kind(kueue.WORKLOAD, kueue.PATH.strip("/"), kueue.WORKLOADS)
RESOURCE_FLAVOR = Kind(kueue.FLAVOR, kueue.PATH.strip("/"), kueue.FLAVORS)
WORKLOAD_PRIORITY_CLASS = Kind(kueue.PRIORITY_CLASS, kueue.PATH.strip("/"), kueue.PRIORITY_CLASSES)
PRIORITY_CLASS = Kind("PriorityClass", "apis/scheduling.k8s.io/v1", "priorityclasses")

# What to do where a cluster doesn't serve one of these.
INSTALL = {
    LEADER_WORKER_SET: leader_worker_set.INSTALL,
    POD_GROUP: coscheduling.INSTALL,
    WORKLOAD: kueue.INSTALL,
}

# What runs own. Objects of others never get here: the API server filters by label.
CHILD_SELECTOR = f"{labels.MANAGED_BY}={labels.MANAGED_BY_VALUE},{labels.RUN}"
CHILDREN = (POD, SERVICE, CONFIG_MAP, VOLUME_CLAIM, DEPLOYMENT, JOB, NETWORK_POLICY)
# Created and not watched: the operator has no right to look at a Secret, and no need to look at the others. Owner
# references collect them.
CREATED_ONLY = (SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, DISRUPTION_BUDGET)
_OPTIONAL = (*AGENT_SANDBOX, LEADER_WORKER_SET, POD_GROUP, WORKLOAD)
BY_NAME = {kind.name: kind for kind in (*CHILDREN, *CREATED_ONLY, *_OPTIONAL)}
