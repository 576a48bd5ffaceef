"""Names of the coscheduling plugin of scheduler-plugins (sigs.k8s.io/scheduler-plugins) that gymtrain uses."""

GROUP = "scheduling.x-k8s.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PATH = f"/apis/{API_VERSION}"

KIND = "PodGroup"
PLURAL = "podgroups"

POD_GROUP_LABEL = f"{GROUP}/pod-group"

INSTALL = "install scheduler-plugins (https://scheduler-plugins.sigs.k8s.io), or clear that value of gymtrain's chart"
