"""`source:` strings of models and datasets.

| form | model | data | meaning |
|---|---|---|---|
| `hf://ORG/NAME` | yes | | a repository on the Hugging Face hub |
| `pvc://CLAIM/PATH` | yes | yes | a path in a PersistentVolumeClaim in the run's namespace |
| `oci://IMAGE` | yes | | a container image with the model in `/models` (KServe's modelcar layout) |
| `configmap://NAME/KEY` | | yes | a key of a ConfigMap in the run's namespace |
| `gym://PATH` | | yes | a path in the Gym image, below NeMo Gym's root, like configPaths |
"""

import re
from dataclasses import dataclass

from gymtrain_api.errors import SourceError

# The CRD has the same expressions as `pattern`, so a bad source is refused at apply time.
MODEL_SOURCE_PATTERN = r"^(hf://[\w.-]+/[\w.-]+|pvc://[a-z0-9.-]+(/[^/].*)?|oci://[\w./:@-]+)$"
DATA_SOURCE_PATTERN = r"^(pvc://[a-z0-9.-]+/[^/].*|configmap://[a-z0-9.-]+/[\w.-]+|gym://[^/].*)$"


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


type ModelSource = HuggingFace | VolumeClaim | ModelImage
type DataSource = VolumeClaim | ConfigMapKey | GymPath


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
        raise SourceError(f"data source {source!r} must be pvc://CLAIM/PATH, configmap://NAME/KEY or gym://PATH")
    scheme, _, rest = source.partition("://")
    head, _, tail = rest.partition("/")
    match scheme:
        case "gym":
            return GymPath(rest)
        case "pvc":
            return VolumeClaim(head, tail)
        case "configmap":
            return ConfigMapKey(head, tail)
        case _:  # a form that the pattern lets pass, and that nobody has parsed yet
            raise SourceError(f"data source {source!r} has the scheme {scheme!r}, which is not known here")
