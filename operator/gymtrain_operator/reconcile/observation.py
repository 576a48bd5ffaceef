"""All that one reconcile knows: the run, what it owns, and what its pods said."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gymtrain_api import labels, leader_worker_set, names
from gymtrain_api.defaults import RunDefaults
from gymtrain_api.pods import condition
from gymtrain_api.record import Record
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_seconds
from gymtrain_api.transports import ServerOffer
from gymtrain_api.wiring import GymPreflight, InferencePreflight, TrainerPreflight, TrainerProgress
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.workload import Priority


@dataclass(frozen=True)
class Run:
    """The resource.

    Attributes:
        spec: None where it doesn't fit the types; `spec_error` then says why.
        record: what its annotation says of it; it may have come with the object, from a backup.
        deleting: the run is on its way out; its owner references collect what it owns.
        preflight_only: nothing comes after its preflight.
        queue: LocalQueue of Kueue that it waits in; empty for a run without one.
        names_queue: whether its own label says so. Defaults do otherwise.
        priority_class: WorkloadPriorityClass that its label names.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    spec: GymTrainingRunSpec | None
    status: GymTrainingRunStatus
    spec_error: str = ""
    record: Record | None = None
    deleting: bool = False
    preflight_only: bool = False
    queue: str = ""
    names_queue: bool = False
    priority_class: str = ""


@dataclass(frozen=True)
class Children:
    """Objects that the run owns, by kind and name. Objects of others never get here.

    Attributes:
        leftovers: what an earlier run of the name made, which is gone.
        strays: trainer pods of the run's name whose Job isn't there: somebody deleted it, or it was an earlier run's.
    """

    by_kind: Mapping[str, Mapping[str, Object]] = field(default_factory=dict)
    leftovers: tuple[Object, ...] = ()
    strays: tuple[Object, ...] = ()

    def get(self, kind: str, name: str) -> Object | None:
        """Returns the object, or None."""
        return self.by_kind.get(kind, {}).get(name)

    def of(self, kind: str) -> list[Object]:
        """Returns all objects of a kind, by name."""
        return [item for _, item in sorted(self.by_kind.get(kind, {}).items())]

    def vllm(self, run: str) -> Object | None:
        """Returns what makes the pods of vLLM: a Deployment, or a LeaderWorkerSet where a server has several."""
        groups = self.get(leader_worker_set.KIND, names.inference_groups(run))
        return self.get("Deployment", names.inference(run)) or groups

    def pods(self, role: labels.Role, more: Mapping[str, str] | None = None) -> list[Object]:
        """Returns the pods of a role, narrowed by `more` labels."""
        wanted = {labels.ROLE: str(role), **(more or {})}
        return [pod for pod in self.of("Pod") if wanted.items() <= labels_of(pod).items()]

    def servers(self, role: labels.Role, more: Mapping[str, str] | None = None) -> list[Object]:
        """Returns the same without pods that are being deleted: their state says nothing about the server."""
        return [pod for pod in self.pods(role, more) if not is_deleting(pod)]


@dataclass(frozen=True)
class Verdict:
    """What preflight found, as the ConfigMap keeps it. `hash` is that of the inputs it is about."""

    hash: str
    gym: GymPreflight
    trainer: TrainerPreflight


@dataclass(frozen=True)
class PreflightOutput:
    """What the containers of a finished preflight pod printed; None for one that printed no verdict.

    Attributes:
        unread: containers that ended well, and whose log the node doesn't give.
    """

    gym: GymPreflight | None
    trainer: TrainerPreflight | None
    inference: InferencePreflight | None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """An object that the API server didn't accept.

    Attributes:
        final: it says that the object is invalid.
        next_in: seconds until it is tried again, where it is.
    """

    kind: str
    name: str
    message: str
    final: bool
    next_in: float = 10.0


@dataclass(frozen=True)
class AgentSandbox:
    """What the cluster offers of agent-sandbox.

    Attributes:
        served: the API server serves its kinds.
        forbidden: why the operator may not use them; empty if it may.
        probe: the SandboxWarmPool that asks its controller for an answer; None if it isn't there yet.
    """

    served: bool
    forbidden: str = ""
    probe: Object | None = None


@dataclass(frozen=True)
class NamespaceDefaults:
    """What the run's namespace has for all of its runs.

    Attributes:
        defaults: None where it has no GymTrainingDefaults.
        error: why they can't be read; empty if they can.
        required_limits: resources of which its quotas count limits, so that no pod without them is admitted.
    """

    defaults: RunDefaults | None = None
    error: str = ""
    required_limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observation:
    """The input of `plan`.

    Attributes:
        now: seconds since the epoch.
        namespace: its defaults; not read once the run keeps its own.
        verdict: of the ConfigMap, so it outlives the preflight pod.
        preflight_output: of the finished preflight pod of the current spec.
        missing: sentences on objects that the spec names and that don't exist.
        progress: the trainer's answer right now; None if it didn't answer.
        offers: the vLLM servers' answers; None until all wanted servers have started and answered.
        oversized: which vLLM server's answer was not read to its end; empty if none is too long.
        agent_sandbox: None where nobody needs to know.
        flavors: spec of the ResourceFlavors that Kueue assigned to the run, by name.
        priority: how urgent the run is for Kueue; None where nothing says so.
        log_tails: last lines of containers that failed, by pod and container.
        rejections: what the API server refused of the plan made just before from the same observation.
        resync: write every object again, even those that look right: somebody may have changed them.
        untouched: uids of the objects that nobody has written since the operator did.
        poll_seconds: between two looks at a run that trains; the more runs there are, the longer.
    """

    run: Run
    now: float
    children: Children = field(default_factory=Children)
    namespace: NamespaceDefaults = field(default_factory=NamespaceDefaults)
    verdict: Verdict | None = None
    preflight_output: PreflightOutput | None = None
    missing: tuple[str, ...] = ()
    progress: TrainerProgress | None = None
    offers: tuple[ServerOffer, ...] | None = None
    oversized: str = ""
    agent_sandbox: AgentSandbox | None = None
    flavors: Mapping[str, Object] = field(default_factory=dict)
    priority: Priority | None = None
    log_tails: Mapping[tuple[str, str], str] = field(default_factory=dict)
    rejections: tuple[Rejection, ...] = ()
    resync: bool = False
    untouched: frozenset[str] = frozenset()
    poll_seconds: float = 2.0


def name_of(manifest: Object) -> str:
    """Returns metadata.name."""
    return str(manifest["metadata"]["name"])


def uid_of(manifest: Object) -> str:
    """Returns metadata.uid."""
    return str(manifest["metadata"].get("uid", ""))


def labels_of(manifest: Object) -> dict[str, str]:
    """Returns metadata.labels."""
    return dict(manifest["metadata"].get("labels") or {})


def attempt_of(manifest: Object) -> int:
    """Returns the attempt of a Job or pod of the trainer; 0 without the label."""
    return int(labels_of(manifest).get(labels.ATTEMPT, "0"))


def is_deleting(manifest: Object) -> bool:
    """Whether the object is being deleted."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def age_of(manifest: Object, now: float) -> float:
    """Returns seconds since the object was made; 0 where that isn't known."""
    return now - (to_seconds(manifest["metadata"].get("creationTimestamp")) or now)


def is_left(manifest: Object, run: str, uid: str) -> bool:
    """Whether an object is an earlier run's of the same name, and nobody else's. While a run of the name is there, the
    garbage collector may never notice that the earlier one is gone. A volume that outlives its run has no owner."""
    owners = manifest["metadata"].get("ownerReferences") or []
    if len(owners) != 1:
        return False
    (owner,) = owners
    of_the_name = (owner.get("kind"), owner.get("name"), owner.get("controller")) == (labels.KIND, run, True)
    return of_the_name and owner.get("uid") != uid


def is_finished(job: Object) -> bool:
    """Whether a Job is over, well or not."""
    return has_condition(job, "Complete") or has_condition(job, "Failed")


def has_condition(manifest: Object, kind: str) -> bool:
    """Whether a condition of an object's status is True."""
    return condition(manifest, kind).get("status") == "True"
