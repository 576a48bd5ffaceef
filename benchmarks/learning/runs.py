"""The runs of an environment: trained, and its controls. Pure but for the files read."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning import tasks
from dev.gpu.vllm_server import NO_MULTICAST
from tests.support.images import published

type Object = dict[str, Any]

FOLDER = Path(__file__).parent
ENVIRONMENTS = tuple(tasks.ENVIRONMENTS)
"""Each has a run in FOLDER."""
HELD_OUT = 64
"""Tasks of an evaluation; the same for all runs of an environment."""
HELD_OUT_SEED = 1000
_TRAINED_ON = 240  # rows at the most: a ConfigMap holds 1 MiB


class Kind(StrEnum):
    """What is done to the model."""

    TRAINED = "trained"
    RATE_ZERO = "rate-zero"  # the same training with learning rate 0
    UNTRAINED = "untrained"  # evaluated alone


@dataclass(frozen=True, order=True)
class Variant:
    """One run.

    Attributes:
        environment: of ENVIRONMENTS.
        kind: what is done.
        seed: of the rows to train on, their order and the trainer. Sampling in vLLM has none.
    """

    environment: str
    kind: Kind
    seed: int

    @property
    def name(self) -> str:
        """Of the GymTrainingRun."""
        return f"{self.environment}-{self.kind}-{self.seed}"


def objects(variant: Variant, *, on_gpus: bool = False, steps: int | None = None) -> list[Object]:
    """What to apply: ConfigMaps with the rows, and the run. On GPUs, vLLM has one and the trainer another. `steps`: of
    the optimizer, for those of its file."""
    run: Object = yaml.safe_load(published((FOLDER / f"{variant.environment}.yaml").read_text()))
    run["metadata"] = {"name": variant.name}
    spec = run["spec"]
    spec["trainer"]["config"]["seed"] = variant.seed
    if steps is not None:
        spec["trainer"]["config"]["max_steps"] = steps
    match variant.kind:
        case Kind.RATE_ZERO:
            spec["trainer"]["config"]["learning_rate"] = 0.0
        case Kind.UNTRAINED:
            spec["evaluation"] = {"withoutTraining": {}}
            del spec["data"]["train"]
    if on_gpus:
        variables = [{"name": name, "value": value} for name, value in NO_MULTICAST.items()]
        for part in ("inference", "trainer"):
            template = {"spec": {"containers": [{"name": part, "env": variables}]}}
            spec[part] |= {"gpus": 1, "template": template}
    rows = tasks.files(variant.environment, variant.seed, HELD_OUT_SEED, _TRAINED_ON, HELD_OUT)
    made: list[Object] = []
    for split, datasets in spec["data"].items():
        for dataset in datasets:
            name = f"{variant.name}-{split}"
            dataset["source"] = f"configmap://{name}/rows.jsonl"
            head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            made.append({**head, "data": {"rows.jsonl": rows[split]}})
    return [*made, run]
