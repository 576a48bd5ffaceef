"""Names of LeaderWorkerSet (LWS, sigs.k8s.io/lws) that gymtrain uses."""

GROUP = "leaderworkerset.x-k8s.io"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"
PATH = f"/apis/{API_VERSION}"

KIND = "LeaderWorkerSet"
PLURAL = "leaderworkersets"

# Variables that its controller gives to all containers of a group.
ENV_LEADER_ADDRESS = "LWS_LEADER_ADDRESS"  # a DNS name
ENV_GROUP_SIZE = "LWS_GROUP_SIZE"
ENV_WORKER_INDEX = "LWS_WORKER_INDEX"  # 0 is the leader

INSTALL = "install LeaderWorkerSet (https://lws.sigs.k8s.io), or set spec.inference.nodes: 1"
