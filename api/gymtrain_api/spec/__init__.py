"""`spec` of a GymTrainingRun, with one module per part.

The CRD (`crds/`) and the reference (`docs/reference/`) are generated from these types, including the
field descriptions. Field names are camelCase on the wire and snake_case in Python.
Only implemented fields are here.
"""

from gymtrain_api.spec.base import (
    CIDR_PATTERN,
    DECIMAL_PATTERN,
    GPU_RESOURCE_PATTERN,
    IMAGE_PATTERN,
    NAME_PATTERN,
    OTLP_PATTERN,
    SIZE_PATTERN,
    PodSettings,
    SecretKeyRef,
)
from gymtrain_api.spec.data import (
    Data,
    Dataset,
    DatasetType,
    FromGym,
    Prepare,
    PromptMessage,
    ReasoningGymTask,
    ValidationDataset,
)
from gymtrain_api.spec.evaluation import Evaluation
from gymtrain_api.spec.gym import Gym, GymServer
from gymtrain_api.spec.run import GymTrainingRunSpec
from gymtrain_api.spec.sandboxes import ImageRewrite, Sandboxes
from gymtrain_api.spec.tracing import SAMPLING_RATE_PER_MILLION, Tracing
from gymtrain_api.spec.training import CorrectionMode, FailureAction, Inference, OnFailure, Push, Records

__all__ = [
    "CIDR_PATTERN",
    "DECIMAL_PATTERN",
    "GPU_RESOURCE_PATTERN",
    "IMAGE_PATTERN",
    "NAME_PATTERN",
    "OTLP_PATTERN",
    "SAMPLING_RATE_PER_MILLION",
    "SIZE_PATTERN",
    "CorrectionMode",
    "Data",
    "Dataset",
    "DatasetType",
    "Evaluation",
    "FailureAction",
    "FromGym",
    "Gym",
    "GymServer",
    "GymTrainingRunSpec",
    "ImageRewrite",
    "Inference",
    "OnFailure",
    "PodSettings",
    "Prepare",
    "PromptMessage",
    "Push",
    "ReasoningGymTask",
    "Records",
    "Sandboxes",
    "SecretKeyRef",
    "Tracing",
    "ValidationDataset",
]
