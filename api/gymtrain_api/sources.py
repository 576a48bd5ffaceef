"""`source:` strings of models and datasets.

| form | model | data | meaning |
|---|---|---|---|
| `hf://ORG/NAME` | yes | | a repository on the Hugging Face hub |
| `hf://ORG/NAME[@REVISION]/FILE` | | yes | a file of a dataset's repository there |
| `hf://ORG/NAME[@REVISION]/[CONFIG/]SPLIT` | | yes | a split of a dataset there, as its loader reads it |
| `s3://BUCKET/KEY` | | yes | an object in S3, or a store with its API |
| `gs://BUCKET/OBJECT` | | yes | an object in Google Cloud Storage |
| `az://CONTAINER/BLOB` | | yes | a blob in Azure Blob Storage |
| `pvc://CLAIM/PATH` | yes | yes | a path in a PersistentVolumeClaim in the run's namespace |
| `oci://IMAGE` | yes | | a container image with the model in `/models` (KServe's modelcar layout) |
| `configmap://NAME/KEY` | | yes | a key of a ConfigMap in the run's namespace |
| `volume://PATH` | | yes | a path in the volume that the dataset itself describes (`volume`) |
| `gym://PATH` | | yes | a path in the Gym image, below NeMo Gym's root, like configPaths |
"""

import re
from dataclasses import dataclass

from gymtrain_api.errors import SourceError

# The CRD has the same expressions as `pattern`, so a bad source is refused at apply time.
MODEL_SOURCE_PATTERN = r"^(hf://[\w.-]+/[\w.-]+|pvc://[a-z0-9.-]+(/[^/].*)?|oci://[\w./:@-]+)$"
DATA_SOURCE_PATTERN = (
    r"^(pvc://[a-z0-9.-]+/[^/].*|configmap://[a-z0-9.-]+/[\w.-]+|(gym|volume)://[^/].*"
    r"|hf://[\w.-]+/[\w.-]+(@[\w.-]+)?/[^/].*|(s3|gs|az)://[\w.-]+/[^/].*)$"
)
REMOTE_PATTERN = r"^(hf|s3|gs|az)://"  # what is fetched to spec.data.storage

# Of `spec.trainer.push`
PUSH_PATTERN = r"^(hf://[\w.-]+/[\w.-]+|(s3|gs|az)://[\w.-]+/[^/].*)$"


@dataclass(frozen=True)
class HuggingFace:
    """A repository on the Hugging Face hub, `ORG/NAME`."""

    repo_id: str


@dataclass(frozen=True)
class VolumeClaim:
    """A path in a PersistentVolumeClaim, without a leading slash; may be empty."""

    claim: str
    path: str


@dataclass(frozen=True)
class ModelImage:
    """A container image with a model in `/models`."""

    image: str


@dataclass(frozen=True)
class ConfigMapKey:
    """A key of a ConfigMap."""

    name: str
    key: str


@dataclass(frozen=True)
class GymPath:
    """A path below NeMo Gym's root in the Gym image."""

    path: str


@dataclass(frozen=True)
class VolumePath:
    """A path in a volume that the spec describes."""

    path: str


@dataclass(frozen=True)
class HubDataset:
    """A file, or a split, of a dataset on the Hugging Face hub."""

    repo_id: str
    revision: str | None
    path: str

    @property
    def is_split(self) -> bool:
        """Whether the path names a split (or a configuration and a split) and no file."""
        return "." not in self.path.rpartition("/")[2]


@dataclass(frozen=True)
class StoredObject:
    """An object in a store that fsspec reads, by its URL."""

    scheme: str
    url: str


type ModelSource = HuggingFace | VolumeClaim | ModelImage
type RemoteSource = HubDataset | StoredObject
type DataSource = VolumeClaim | ConfigMapKey | GymPath | VolumePath | RemoteSource


def parse_model_source(source: str) -> ModelSource:
    """Parses `spec.model.source`.

    Raises:
        SourceError: the string has none of the forms above.
    """
    if not re.match(MODEL_SOURCE_PATTERN, source):
        raise SourceError(f"model source {source!r} must be hf://ORG/NAME, pvc://CLAIM/PATH or oci://IMAGE")
    scheme, _, rest = source.partition("://")
    match scheme:
        case "hf":
            return HuggingFace(rest)
        case "oci":
            return ModelImage(rest)
        case "pvc":
            claim, _, path = rest.partition("/")
            return VolumeClaim(claim, path)
        case _:  # a form that the pattern lets pass, and that nobody has parsed yet
            raise SourceError(f"model source {source!r} has the scheme {scheme!r}, which is not known here")


def parse_data_source(source: str) -> DataSource:
    """Parses a dataset's `source`.

    Raises:
        SourceError: the string has none of the forms above.
    """
    if not re.match(DATA_SOURCE_PATTERN, source):
        raise SourceError(
            f"data source {source!r} must be pvc://CLAIM/PATH, configmap://NAME/KEY, gym://PATH, volume://PATH, "
            "hf://ORG/NAME/FILE, s3://BUCKET/KEY, gs://BUCKET/OBJECT or az://CONTAINER/BLOB"
        )
    scheme, _, rest = source.partition("://")
    head, _, tail = rest.partition("/")
    match scheme:
        case "gym":
            return GymPath(rest)
        case "pvc":
            return VolumeClaim(head, tail)
        case "configmap":
            return ConfigMapKey(head, tail)
        case "volume":
            return VolumePath(rest)
        case "s3" | "gs" | "az":
            return StoredObject(scheme, source)
        case "hf":
            name, _, path = tail.partition("/")
            name, _, revision = name.partition("@")
            return HubDataset(f"{head}/{name}", revision or None, path)
        case _:  # a form that the pattern lets pass, and that nobody has parsed yet
            raise SourceError(f"data source {source!r} has the scheme {scheme!r}, which is not known here")
