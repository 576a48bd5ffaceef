"""The pull transport's documents: what a trainer offers over HTTP and tells vLLM to fetch.

    trainer                                          vLLM pod (backend `transports.PULL_BACKEND`)
    GET /weights/7/manifest.json   <───────────────  POST /update_weights {"update_info": PullUpdate}
    GET /weights/7/00000.safetensors  <────────────  fetch and verify every file, then load

File names are relative to the manifest's URL. The tensors carry the names of the Hugging Face checkpoint.
"""

from pydantic import BaseModel, ConfigDict, Field

MANIFEST_FILE = "manifest.json"

# Written by the plugin in the scratch folder of a vLLM pod once it holds weights: the version, as text.
HELD_VERSION_FILE = "held-weights"


class WeightFile(BaseModel):
    """One safetensors file."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(pattern=r"^[\w][\w.-]*$")
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class WeightManifest(BaseModel):
    """All weights of one version."""

    model_config = ConfigDict(frozen=True)

    version: str = Field(min_length=1)  # run:attempt:step
    files: list[WeightFile] = Field(min_length=1)

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


class PullUpdate(BaseModel):
    """`update_info` of POST /update_weights."""

    model_config = ConfigDict(frozen=True)

    manifest_url: str = Field(pattern=r"^https?://")
    version: str = Field(min_length=1)  # must be the manifest's
    timeout_seconds: float = Field(gt=0)  # deadline of the fetch
