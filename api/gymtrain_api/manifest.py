"""The pull transport's documents: what a trainer serves over HTTP, and how it tells vLLM to fetch it.

    trainer                                            vLLM pod (backend `transports.PULL_BACKEND`)
    GET /weights/7/manifest  <───────────────────────  POST /update_weights {"update_info": PullUpdate, step "fetch"}
    GET /weights/7/00000.safetensors, by ranges  <───  fetch and verify every part as it is announced
    POST /weights/7/fetched/ID  <────────────────────  all is there, or can't be had
                                                       POST /update_weights {..., step "load"}: load

The manifest is a stream of JSON lines: `WeightHead`, a `WeightPart` as soon as it is written, `WeightEnd`. A pod can
read it while the trainer still writes. Without its last line it is invalid. File names are relative to the manifest's
URL, in the order of loading. Tensors have the names of the Hugging Face checkpoint.

Every manifest names all files of its version. Tensors that don't change are in separate files, and their parts say
`kept`. Later versions name such a file again with the same bytes, and a pod that has it doesn't fetch it.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MANIFEST_FILE = "manifest"
FETCHED = "fetched"
FETCH_HEADER = "Gymtrain-Fetch"  # of the pod's requests: PullUpdate.fetch_id


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    def line(self) -> bytes:
        """The line as written in the manifest."""
        return self.model_dump_json().encode() + b"\n"


class WeightHead(_Line):
    """The first line."""

    version: str = Field(min_length=1)  # run:attempt:step
    bytes: int = Field(ge=0)  # of all files, as far as the trainer knows in advance, to choose where to put them


class WeightPart(_Line):
    """A range of one safetensors file: the unit of writing, hashing and fetching."""

    name: str = Field(pattern=r"^[\w][\w.-]*$")
    size: int = Field(ge=0)  # of the whole file
    offset: int = Field(ge=0)
    bytes: int = Field(gt=0)
    blake3: str = Field(pattern=r"^[0-9a-f]{64}$")
    kept: bool = False  # worth keeping: no other file of the attempt has this name


class WeightEnd(_Line):
    """The last line."""

    parts: int = Field(gt=0)  # number of parts before this line


class PullUpdate(BaseModel):
    """`update_info` of POST /update_weights."""

    model_config = ConfigDict(frozen=True)

    manifest_url: str = Field(pattern=r"^https?://")
    version: str = Field(min_length=1)  # must be the manifest's
    timeout_seconds: float = Field(gt=0)  # deadline of the fetch
    step: Literal["fetch", "load"] = "load"  # fetch: begin, and answer at once; load: what was fetched, or fetch now
    fetch_id: str = Field(default="", pattern=r"^[0-9a-f]*$")  # under which the pod says that it has fetched, if any
