"""The CustomResourceDefinition."""

from collections.abc import Mapping
from typing import Any

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType
from gymtrain_api.crd.rules import add_rules
from gymtrain_api.crd.structural import Schema, structural_schema
from gymtrain_api.defaults import NAME as DEFAULTS_NAME
from gymtrain_api.defaults import RunDefaults
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.validations import RULES

FILE_NAME = f"{labels.GROUP}_{labels.PLURAL}.yaml"
DEFAULTS_FILE_NAME = f"{labels.GROUP}_{labels.DEFAULTS_PLURAL}.yaml"


def custom_resource_definition() -> dict[str, Any]:
    """The CRD as a manifest."""
    names = {"singular": labels.KIND.lower(), "shortNames": [labels.SHORT_NAME]}
    version = {"subresources": {"status": {}, "scale": _SCALE}, "additionalPrinterColumns": _COLUMNS}
    return _definition(labels.KIND, labels.PLURAL, names, version, run_schema())


def defaults_definition() -> dict[str, Any]:
    """The CRD of the defaults of a namespace, as a manifest."""
    names = {"singular": labels.DEFAULTS_PLURAL}
    return _definition(labels.DEFAULTS_KIND, labels.DEFAULTS_PLURAL, names, {}, defaults_schema())


def _definition(
    kind: str, plural: str, names: Mapping[str, Any], version: Mapping[str, Any], schema: Schema
) -> dict[str, Any]:
    """`names`, `version`: what it has besides."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{labels.GROUP}",
            # Deleting the CRD deletes every object of the kind, so `helm uninstall` leaves it.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, **names, "categories": ["gymtrain"]},
            "versions": [
                {
                    "name": labels.VERSION,
                    "served": True,
                    "storage": True,
                    **version,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def defaults_schema() -> Schema:
    """Schema of the defaults of a namespace."""
    return {
        "type": "object",
        "description": "Defaults for the runs of a namespace that start from now on. They go over those of the "
        "cluster, and the spec of a run goes over both.",
        "required": ["spec"],
        "properties": {
            **_head(labels.DEFAULTS_KIND),
            "spec": structural_schema(RunDefaults, defaults=False),
        },
        "x-kubernetes-validations": [
            {
                "rule": f"self.metadata.name == '{DEFAULTS_NAME}'",
                "message": f"a namespace has one {labels.DEFAULTS_KIND}, which is called {DEFAULTS_NAME}",
                "fieldPath": ".metadata.name",
                "reason": "FieldValueInvalid",
            }
        ],
    }


def _head(kind: str) -> Schema:
    """Properties that objects of all kinds have."""
    return {
        "apiVersion": {"type": "string", "description": f"{labels.API_VERSION}."},
        "kind": {"type": "string", "description": f"{kind}."},
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
    }


def run_schema() -> Schema:
    """Schema of the whole run, with its rules."""
    schema: Schema = {
        "type": "object",
        "description": "A reinforcement-learning post-training run of a language model in NeMo Gym environments.",
        "required": ["spec"],
        "properties": {
            **_head(labels.KIND),
            "spec": structural_schema(GymTrainingRunSpec, defaults=True),
            "status": structural_schema(GymTrainingRunStatus, defaults=False),
        },
    }
    add_rules(schema, RULES)
    return schema


def _column(name: str, path: str, description: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | {"priority": 1} if wide else column


# What `kubectl scale` and autoscalers read and write (decision 45): the number of vLLM servers.
_SCALE = {
    "specReplicasPath": ".spec.inference.replicas",
    "statusReplicasPath": ".status.inference.replicas",
    "labelSelectorPath": ".status.inference.selector",
}

_COLUMNS = [
    _column("State", ".status.state", "What the run is doing, in one word."),
    _column("Step", ".status.progress.step", "Optimizer steps done.", "integer"),
    _column("Max", ".status.progress.maxSteps", "Optimizer steps to do.", "integer"),
    _column("Reward", ".status.progress.reward", "Mean reward of the last step."),
    _column("Validation", ".status.progress.validationReward", "Mean reward of the last evaluation."),
    _column("Transport", ".status.weightSync.transport", "How weights reach vLLM."),
    _column("Age", ".metadata.creationTimestamp", "Time since the run was created.", "date"),
    _column("Attempt", ".status.attempt", "Current attempt, from 1.", "integer", wide=True),
    _column("Tokens/s", ".status.progress.tokensPerSecond", "Completion tokens per second.", wide=True),
    _column(
        "Health",
        f'.status.conditions[?(@.type=="{ConditionType.HEALTHY}")].reason',
        "The trainer's alarm, or NoAlarm.",
        wide=True,
    ),
    _column(
        "Message",
        f'.status.conditions[?(@.type=="{ConditionType.PROGRESSING}")].message',
        "What the run does or waits for.",
        wide=True,
    ),
]
