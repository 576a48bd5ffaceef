"""Every object of a run, as YAML, compared with the files in golden/.

After a change on purpose, write them again and read the difference:

    GYMTRAIN_UPDATE_GOLDEN=1 python -m pytest tests/unit/operator/test_golden_manifests.py
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.world import World

_FOLDER = Path(__file__).parent / "golden"

CASES: dict[str, dict[str, Any]] = {
    "smallest": {},
    "gpu-nodes": {
        "model": {"source": "hf://org/model", "storage": {"size": "20Gi", "accessModes": ["ReadWriteMany"]}},
        "gym": {
            "configPaths": ["resources_servers/reasoning_gym/configs/reasoning_gym.yaml"],
            "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "judge", "key": "key"}}}],
            "servers": {"math": {"replicas": 2, "resources": {"requests": {"cpu": "1"}}}},
        },
        "data": {"train": [{"source": "pvc://datasets/train.jsonl"}, {"source": "configmap://rows/more.jsonl"}]},
        "inference": {
            "replicas": 2,
            "gpus": 1,
            "args": ["--max-model-len=16384"],
            "compileCache": {"claimName": "kept"},
        },
        "trainer": {
            "nodes": 4,
            "gpus": 8,
            "processesPerNode": 8,
            "checkpoint": {"claimName": "checkpoints"},
            "template": {"spec": {"nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu"}]}},
        },
        "serviceAccountName": "puller",
    },
    "adapter-without-agents": {
        "model": {"source": "pvc://models/llama", "lora": {"r": 16, "target_modules": ["q_proj", "v_proj"]}},
        "rollout": {"mode": "Verify"},
        "gateway": {"replicas": 2, "maxInFlight": 64, "resources": {"requests": {"cpu": "1"}}},
        "inference": {"gpus": 1},
        "trainer": {"gpus": 1, "checkpoint": {"claimName": "checkpoints"}},
    },
    "server-of-two-nodes": {
        "inference": {"replicas": 2, "nodes": 2, "gpus": 8, "compileCache": {"claimName": "kept"}},
        "trainer": {"gpus": 8, "processesPerNode": 8},
    },
    "sandboxes": {
        "sandboxes": {
            "warmPools": [{"image": "tasks/one:1", "replicas": 4, "reuse": "Restart"}],
            "network": {"mode": "EgressAllowed", "cidrs": ["10.9.0.0/16"], "ports": [443]},
            "imagePullSecrets": [{"name": "registry"}],
        },
    },
    "own-trainer": {
        "trainer": {
            "image": "mine:1",
            "command": ["torchrun", "--master-addr=$(GYMTRAIN_MASTER_HOST)", "train.py"],
            "nodes": 2,
            "gpus": 8,
        },
    },
    "offline": {
        "model": {"source": "oci://models/tiny:1"},
        "trainer": {"checkpoint": {"size": "1Gi"}, "config": {"max_steps": 4}},
    },
}


class _Plain(yaml.SafeDumper):
    """YAML in which the same value twice stands there twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _rendered(blocks: dict[str, Any]) -> str:
    world = World(**blocks)
    first = world.reconcile().apply
    world.preflight_ends()
    objects = {(m["kind"], m["metadata"]["name"]): m for m in [*first, *world.reconcile(5).apply]}
    return yaml.dump_all((objects[key] for key in sorted(objects)), Dumper=_Plain, sort_keys=True, width=120)


@pytest.mark.parametrize("case", CASES)
def test_the_objects_of_a_run_are_as_recorded(case: str) -> None:
    text = _rendered(CASES[case])
    file = _FOLDER / f"{case}.yaml"
    if os.environ.get("GYMTRAIN_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), "see this file's docstring for how to record the new objects"
