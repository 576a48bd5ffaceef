"""What a pod of the API server says, as far as it matters here."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gymtrain_api import labels
from gymtrain_api.pods import condition
from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_api.times import to_seconds
from gymtrain_broker.objects import leases
from gymtrain_broker.objects.leases import Lease
from gymtrain_broker.objects.pod_diagnosis import Trouble, disruption, last_end, last_state, named, trouble
from gymtrain_broker.objects.sandbox_pod import CONTAINER

type Object = dict[str, Any]


@dataclass(frozen=True)
class SandboxPod:
    """One sandbox pod as last seen."""

    name: str  # of the object that carries the lease
    uid: str
    pod_name: str  # empty where there is none yet
    identity: str  # what its token is made from
    version: int
    shape: str
    asked: str  # the image as it was asked for
    image: str
    made_for: str
    reusable: bool
    created: float
    hard_stop: float  # when the kubelet ends it
    deleting: bool
    ended: bool
    ip: str
    held_up: bool  # a node has it and has not got as far as its network: its containers can't even be pulled
    running: bool
    started: float | None
    restarts: int
    pulled: bool
    claim: str  # id in the annotation, void or not
    lease: Lease | None
    request: SandboxRequest | None
    trouble: Trouble | None
    last: Trouble  # why the container before the present one ended
    clean: (
        bool  # nothing of an earlier lease is left: a reset wipes volumes that outlive the container, a crash doesn't
    )
    disruption: str  # why the cluster deletes it; empty where it doesn't

    @property
    def leased(self) -> Lease | None:
        """The lease that stands; a restart of the container makes it void."""
        return self.lease if self.claim and self.lease and self.lease.restarts >= self.restarts else None

    @property
    def never_leased(self) -> bool:
        """Whether it has served nobody yet."""
        return not self.claim

    @property
    def for_its_image(self) -> bool:
        """Whether it is there for its image alone (pre_pulls)."""
        return self.made_for == leases.MadeFor.PRE_PULL

    @property
    def lost(self) -> bool:
        """Whether it is over with this pod."""
        return self.deleting or self.ended


def read(pod: Object) -> SandboxPod:
    """The pod; fields that are missing count as not there yet."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    backing = pod.get("backing") or {"name": meta["name"], "identity": meta["name"]}
    notes = meta.get("annotations") or {}
    container = named(status.get("containerStatuses"), CONTAINER)
    state = container.get("state") or {}
    created = to_seconds(meta.get("creationTimestamp")) or 0.0
    begin = to_seconds(status.get("startTime")) or created
    claim = str(notes.get(labels.SANDBOX_CLAIM) or "")
    lease = leases.from_json(str(notes.get(labels.SANDBOX_LEASE) or "")) if claim else None
    version = str(meta.get("resourceVersion") or "")
    return SandboxPod(
        name=meta["name"],
        uid=str(meta.get("uid") or ""),
        pod_name=backing["name"],
        identity=backing["identity"],
        version=int(version) if version.isdigit() else 0,
        shape=str((meta.get("labels") or {}).get(labels.SANDBOX_SHAPE) or ""),
        asked=str(notes.get(labels.SANDBOX_IMAGE) or ""),
        image=str(named(spec.get("containers"), CONTAINER).get("image") or ""),
        made_for=str(notes.get(labels.SANDBOX_MADE_FOR) or ""),
        reusable=spec.get("restartPolicy") == "Always",
        created=created,
        hard_stop=begin + float(spec.get("activeDeadlineSeconds") or 0),
        deleting=bool(meta.get("deletionTimestamp")),
        ended=status.get("phase") in ("Succeeded", "Failed"),
        ip=str(status.get("podIP") or ""),
        held_up=condition(pod, "PodReadyToStartContainers").get("status") == "False",
        running="running" in state,
        started=to_seconds((state.get("running") or {}).get("startedAt")),
        restarts=int(container.get("restartCount") or 0),
        pulled=bool(container.get("imageID")),
        claim=claim,
        lease=lease,
        request=_request(str(notes.get(labels.SANDBOX_REQUEST) or "")) if claim else None,
        trouble=trouble(pod),
        last=last_end(container),
        clean=not (claim and lease is None)
        and (not container.get("restartCount") or last_state(container).get("exitCode") == 0),
        disruption=disruption(pod),
    )


def _request(text: str) -> SandboxRequest | None:
    try:
        return SandboxRequest.model_validate_json(text)
    except ValidationError:
        return None
