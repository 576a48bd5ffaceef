"""`spec.model`: what is trained, and where it is kept."""

from typing import Literal

from pydantic import Field

from gymtrain_api.sources import MODEL_SOURCE_PATTERN
from gymtrain_api.spec.base import SIZE_PATTERN, KubernetesObject, SecretKeyRef, Spec


class ModelStorage(Spec):
    """The volume that holds the model, made and filled once per run."""

    size: str = Field(pattern=SIZE_PATTERN, max_length=32, description="Size of the volume, such as 20Gi.")
    storage_class_name: str | None = Field(None, description="StorageClass; the cluster's default where left out.")
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteMany"],
        min_length=1,
        max_length=2,
        description="Access modes. ReadWriteOnce holds on one node only.",
    )


class Model(Spec):
    """The policy model that is trained."""

    source: str = Field(
        pattern=MODEL_SOURCE_PATTERN,
        max_length=512,
        description="Where the weights come from: hf://ORG/NAME, pvc://CLAIM/PATH, or oci://IMAGE for an "
        "image that holds the model in /models.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of an hf:// source.")
    token_secret: SecretKeyRef | None = Field(
        None, description="Secret key with the Hugging Face token for a gated hf:// source."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Data type of the weights in vLLM. auto means float32 where there is no GPU and the "
        "model's own type on GPUs.",
    )
    lora: KubernetesObject | None = Field(
        None,
        description="Trains an adapter instead of all weights: settings of peft's LoraConfig under peft's own names, "
        "such as r, lora_alpha, target_modules. Checked by preflight.",
    )
    storage: ModelStorage | None = Field(
        None,
        description="Volume that the model is fetched into once and that vLLM and the trainer share. "
        "Left out, each pod fetches its own copy; a pvc:// source needs none.",
    )
