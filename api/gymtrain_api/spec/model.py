"""`spec.model`: the model to train, and where it is stored."""

from typing import Literal

from pydantic import Field

from gymtrain_api.sources import MODEL_SOURCE_PATTERN
from gymtrain_api.spec.base import SIZE_PATTERN, KubernetesObject, SecretKeyRef, Spec


class ModelStorage(Spec):
    """The volume with the model, made and filled once per run."""

    size: str = Field(pattern=SIZE_PATTERN, max_length=32, description="Size of the volume, such as 20Gi.")
    storage_class_name: str | None = Field(None, description="StorageClass. Defaults to the cluster's default.")
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany"]] = Field(
        default=["ReadWriteMany"],
        min_length=1,
        max_length=2,
        description="Access modes. ReadWriteOnce works only on one node.",
    )


class Model(Spec):
    """The policy model that is trained."""

    source: str = Field(
        pattern=MODEL_SOURCE_PATTERN,
        max_length=512,
        description="Source of the weights: hf://ORG/NAME, pvc://CLAIM/PATH, or oci://IMAGE for an image with the "
        "model in /models.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of an hf:// source.")
    token_secret: SecretKeyRef | None = Field(
        None, description="Secret key with the Hugging Face token for a gated hf:// source."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Data type of the weights in vLLM. auto means float32 on CPUs and the model's own type on GPUs.",
    )
    lora: KubernetesObject | None = Field(
        None,
        description="Trains an adapter instead of all weights. Settings of peft's LoraConfig, under peft's own names, "
        "such as r, lora_alpha, target_modules. Preflight checks them.",
    )
    storage: ModelStorage | None = Field(
        None,
        description="Volume that the model is fetched to once, and that vLLM and the trainer share. Without it, each "
        "pod fetches its own copy. A pvc:// source needs none.",
    )
