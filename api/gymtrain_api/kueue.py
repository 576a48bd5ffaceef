"""Names of Kueue (kueue.sigs.k8s.io) that gymtrain uses."""

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
API_VERSION = f"{GROUP}/{VERSION}"
PATH = f"/apis/{API_VERSION}"

WORKLOAD, WORKLOADS = "Workload", "workloads"
FLAVOR, FLAVORS = "ResourceFlavor", "resourceflavors"  # of the cluster
PRIORITY_CLASS, PRIORITY_CLASSES = "WorkloadPriorityClass", "workloadpriorityclasses"  # of the cluster

# Labels on the run, which users know from Jobs.
QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"

JOB_UID_LABEL = f"{GROUP}/job-uid"  # on a Workload: uid of what it stands for

# Annotations of a pod template that ask for places close to each other, by field of a pod set's topologyRequest. The
# last one has the value "true".
TOPOLOGY_ANNOTATIONS = {
    "required": f"{GROUP}/podset-required-topology",
    "preferred": f"{GROUP}/podset-preferred-topology",
    "unconstrained": f"{GROUP}/podset-unconstrained-topology",
}
# On pods of a set whose places were chosen: Kueue names the node and takes the gate away.
TOPOLOGY_GATE = f"{GROUP}/topology"
POD_SET_LABEL = f"{GROUP}/podset"
WORKLOAD_ANNOTATION = f"{GROUP}/workload"

MAX_POD_SETS = 18
MAX_POD_SET_NAME = 63

INSTALL = f"install Kueue 0.19 or later (https://kueue.sigs.k8s.io), or remove the label {QUEUE_LABEL}"
ENABLE = (
    "the operator was installed without the right to use Kueue: set the chart value kueue.enabled to true, or remove "
    "the queue"
)
