"""What every builder is given: the run, the operator's defaults, and the Gym servers that preflight found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymtrain_api import names
from gymtrain_api.defaults import AppliedDefaults, RunDefaults
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import Images
from gymtrain_api.wiring import GymServerInfo
from gymtrain_operator.manifests.scrapers import Scrapers


@dataclass(frozen=True)
class Defaults:
    """The operator's own settings that reach the pods of a run.

    Attributes:
        gym, gateway, inference, trainer, broker, sandbox: images where the spec names none.
        inference_gpu, trainer_gpu: the same where the pods have GPUs.
        pull_policy: imagePullPolicy of all containers.
        user_namespaces: whether the cluster's nodes can give each pod a user namespace.
        image_volumes: whether its API server and nodes can mount an image as a volume.
        sandbox_max_resources: the most that a sandbox may ask for, as cpu=8,memory=32Gi; empty: without end.
        kueue: whether the operator has the right to use Kueue.
        gang_scheduler: name of a scheduler that places the pods of a PodGroup together; empty: each is placed alone.
        operator_namespace: where the operator runs, so that it may call the run's pods; None if it
            runs outside of the cluster.
        scrapers: who may read the metrics of the run's pods.
        cluster: what holds for the runs of all namespaces, unless a namespace or a run says otherwise.
    """

    gym: str = "gymtrain/gym:dev"
    gateway: str = "gymtrain/gateway:dev"
    inference: str = "gymtrain/inference:dev"
    inference_gpu: str = "gymtrain/inference:dev"
    trainer: str = "gymtrain/trainer:dev"
    trainer_gpu: str = "gymtrain/trainer:dev"
    broker: str = "gymtrain/broker:dev"
    sandbox: str = "gymtrain/sandbox:dev"
    pull_policy: str = "IfNotPresent"
    user_namespaces: bool = False
    image_volumes: bool = False
    sandbox_max_resources: str = ""
    kueue: bool = False
    gang_scheduler: str = ""
    operator_namespace: str | None = None
    scrapers: Scrapers = field(default_factory=Scrapers)
    cluster: RunDefaults = field(default_factory=RunDefaults)


@dataclass(frozen=True)
class KeptNames:
    """Names that objects of the run have, where those that this release gives may be others.

    Attributes:
        gym_servers: of the Services of Gym servers, by the server's label.
        broker_identity: None where the run has no broker yet.
        open_gym: whether its Gym servers started in a release that let them reach everything, which they may rely on.
    """

    gym_servers: Mapping[str, str] = field(default_factory=dict)
    broker_identity: str | None = None
    open_gym: bool = False


@dataclass(frozen=True)
class PodSetAdmission:
    """What Kueue adds to the pods of one pod set that it admitted.

    Attributes:
        gates: scheduling gates, which Kueue takes away when it has chosen a node.
    """

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunContext:
    """A run as the builders see it.

    Attributes:
        recorded: images that the run has used so far; what is left out follows from the spec and the defaults.
        kept: names of its objects, where it was begun by a release that gave others.
        applied: defaults of cluster and namespace that the run is made with. They are in no hash of a server's inputs.
        lineage: uid of the run that this one was restored from, which its checkpoints carry; its own for any other.
        admission: what the pods of each pod set get, of a run that waits in a queue of Kueue; empty for any other.
        gang_scheduler: the scheduler of the pods that are placed together; empty where they are not.
    """

    name: str
    namespace: str
    uid: str
    spec: GymTrainingRunSpec
    defaults: Defaults = field(default_factory=Defaults)
    recorded: Images = field(default_factory=Images)
    kept: KeptNames = field(default_factory=KeptNames)
    applied: AppliedDefaults = field(default_factory=AppliedDefaults)
    lineage: str = ""
    admission: Mapping[str, PodSetAdmission] = field(default_factory=dict)
    gang_scheduler: str = ""

    def gym_server(self, server: str) -> str:
        """Returns the name of the Deployment and Service of a Gym server."""
        return self.kept.gym_servers.get(names.gym_server_label(server)) or names.gym_server(self.name, server)

    @property
    def broker_identity(self) -> str:
        """Name of the broker's ServiceAccount, and of the Secret with its token."""
        return self.kept.broker_identity or names.broker_identity(self.name, self.uid)

    @property
    def verifies(self) -> bool:
        """Whether answers are generated and verified without agents."""
        return self.spec.rollout.mode == "Verify"

    @property
    def gym_image(self) -> str:
        """Image of the Gym servers, of the Gym preflight and of the data preparation."""
        return self.recorded.gym or self.spec.gym.image or self.applied.images.gym or self.defaults.gym

    @property
    def trainer_image(self) -> str:
        """Image of gymtrain's trainer, of its preflight and of the model fetch."""
        images = self.applied.images
        if self.spec.trainer.gpus:
            default = images.trainer_gpu or self.defaults.trainer_gpu
        else:
            default = images.trainer or self.defaults.trainer
        own = self.spec.trainer.image if self.spec.trainer.command is None else None
        return self.recorded.trainer or own or default

    @property
    def training_image(self) -> str:
        """Image of what trains: that of the user's command, or gymtrain's trainer."""
        trainer = self.spec.trainer
        return trainer.image if trainer.command is not None and trainer.image else self.trainer_image

    @property
    def gateway_image(self) -> str:
        """Image of the gateway."""
        return self.recorded.gateway or self.spec.gateway.image or self.applied.images.gateway or self.defaults.gateway

    @property
    def inference_image(self) -> str:
        """Image of vLLM."""
        images = self.applied.images
        if self.spec.inference.gpus:
            default = images.inference_gpu or self.defaults.inference_gpu
        else:
            default = images.inference or self.defaults.inference
        return self.recorded.inference or self.spec.inference.image or default

    @property
    def broker_image(self) -> str:
        """Image of the sandbox broker."""
        return self.recorded.broker or self.applied.images.broker or self.defaults.broker

    @property
    def sandbox_image(self) -> str:
        """Image with the daemon of the sandboxes."""
        return self.recorded.sandbox or self.applied.images.sandbox or self.defaults.sandbox

    @property
    def images(self) -> Images:
        """All of them, to be recorded."""
        return Images(
            gym=self.gym_image,
            trainer=self.trainer_image,
            gateway=self.gateway_image,
            inference=self.inference_image,
            broker=self.broker_image,
            sandbox=self.sandbox_image,
        )


@dataclass(frozen=True)
class GymServers:
    """The Gym servers that preflight found, the head not among them, and the config that they read."""

    servers: tuple[GymServerInfo, ...]
    config: dict[str, Any]

    def with_pods(self, run: RunContext) -> tuple[GymServerInfo, ...]:
        """Returns those that get pods: in mode Verify the trainer does the agents' work."""
        return tuple(server for server in self.servers if server.kind != "agent" or not run.verifies)
