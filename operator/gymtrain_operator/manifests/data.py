"""How datasets get into a pod: a read-only mount for each dataset that is a volume or a ConfigMap.

Dataset N of `spec.data.train` is mounted as a folder, /gymtrain/sources/N; the file in it has the path
that the source names (a key, for a ConfigMap). The whole volume is mounted, not the file by subPath:
for a file that isn't there the kubelet would make a folder of that name instead of an error.
"""

from dataclasses import dataclass

from gymtrain_api import wiring
from gymtrain_api.sources import ConfigMapKey, VolumeClaim, parse_data_source
from gymtrain_operator.manifests.context import Object, RunContext
from gymtrain_operator.manifests.pod import container


@dataclass(frozen=True)
class DataMounts:
    """Volumes of the pod, and the mounts of the container that reads the datasets."""

    volumes: tuple[Object, ...]
    mounts: tuple[Object, ...]


INDEX_MOUNT: Object = {"name": "data", "mountPath": wiring.DATA_DIR}
INDEX_VOLUME: Object = {"name": "data", "emptyDir": {}}


def data_sources(run: RunContext) -> DataMounts:
    """Mounts of all datasets that live in the cluster. A claim that several datasets share is one volume:
    a pod that names a claim twice never starts with some drivers."""
    volumes: dict[str, Object] = {}
    mounts: list[Object] = []
    for number, dataset in enumerate(run.spec.data.train):
        source = parse_data_source(dataset.source) if dataset.source else None
        match source:
            case VolumeClaim(claim=claim):
                key, volume = f"pvc/{claim}", {"persistentVolumeClaim": {"claimName": claim}}
            case ConfigMapKey(name=name):
                key, volume = f"configmap/{name}", {"configMap": {"name": name}}
            case _:
                continue
        found = volumes.setdefault(key, {"name": f"source-{len(volumes)}", **volume})
        mounts.append({"name": found["name"], "mountPath": f"{wiring.SOURCES_DIR}/{number}", "readOnly": True})
    return DataMounts(tuple(volumes.values()), tuple(mounts))


def data_init(run: RunContext, gym_config_mount: Object) -> Object:
    """Init container of trainer pods that prepares and indexes the datasets."""
    return container(
        run,
        "data",
        run.gym_image,
        ["python", "-m", "gymtrain_gym.data"],
        mounts=[INDEX_MOUNT, gym_config_mount, *data_sources(run).mounts],
        env=run.spec.gym.env,
        requests={"cpu": "50m", "memory": "128Mi"},
    )
