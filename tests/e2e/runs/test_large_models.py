"""Sharded models on CPUs: in the shape of examples/slurm-4-nodes.yaml, and a mixture of experts; and what they write.

Eight processes import torch on what cores there are: see the Makefile for how long that takes.
"""

import json
from typing import Any

import pytest

from tests.support.faults import trainer_events
from tests.support.images import image
from tests.support.kubectl import Kubectl
from tests.support.runs import example, tiny_run
from tests.support.trainer_tests import run_to_its_end

pytestmark = pytest.mark.large

MINUTES = 60
SAME = 0.001  # mean |difference| of log-probabilities, in float32
VOLUME = "shared"
# What a run left on its volume, and whether transformers loads the model as it was exported.
_LOOK = """
import json, sys
from pathlib import Path
from safetensors import safe_open
from transformers import AutoModelForCausalLM

run = Path("/checkpoints") / sys.argv[1]
checkpoints = {
    folder.name: sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    for folder in run.glob("checkpoint-*")
}
types, files = set(), sorted((run / "model").glob("*.safetensors"))
for one in files:
    with safe_open(one, "pt") as file:
        types |= {file.get_slice(name).get_dtype() for name in file.keys()}
_, loaded = AutoModelForCausalLM.from_pretrained(run / "model", dtype="auto", output_loading_info=True)
said = json.loads((run / "model" / "config.json").read_text())["dtype"]
wrong = {name: sorted(map(str, found)) for name, found in loaded.items() if found}
print("\\n" + json.dumps({"checkpoints": checkpoints, "types": sorted(types), "said": said, "wrong": wrong}))
"""


def _sharded_run(name: str, layer: str, nodes: int, **config: Any) -> dict[str, Any]:
    """On CPUs, by the settings of the example for large models. Verify saves the agent's pod."""
    run, large = tiny_run(name, save_steps=2, **config), example("slurm-4-nodes.yaml", "large")["spec"]["trainer"]
    trainer = run["spec"]["trainer"]
    trainer |= {"nodes": nodes, "processesPerNode": 2, "checkpoint": {"claimName": VOLUME}}
    trainer["config"] |= {key: large["config"][key] for key in ("fsdp", "fsdp_config", "gradient_checkpointing")}
    trainer["config"]["fsdp_config"] |= {"transformer_layer_cls_to_wrap": [layer]}
    run["spec"]["rollout"]["mode"] = "Verify"
    run["spec"]["weightSync"] = {"parityEverySyncs": 1, "parityThreshold": str(SAME)}
    return run


def _train(kubectl: Kubectl, run: dict[str, Any]) -> dict[str, Any]:
    """Trains to the end, and looks at the volume: what `_LOOK` prints."""
    name, config = run["metadata"]["name"], run["spec"]["trainer"]["config"]
    # On the one node of a test cluster, all pods may write to a volume that one node may.
    request = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": VOLUME}, "spec": request}
    kubectl.apply(claim, run)
    kubectl.wait_condition(name, "Complete", 20 * MINUTES)
    assert len(kubectl.pods(name, role="trainer")) == run["spec"]["trainer"]["nodes"]
    steps = trainer_events(kubectl, name, "step")
    assert [step["step"] for step in steps] == list(range(1, config["max_steps"] + 1))
    status = kubectl.get("gymtrainingrun", name)["status"]
    assert status["attempt"] == 1
    assert float(status["progress"]["parity"]) < SAME

    volumes = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": VOLUME}}]
    mounts = [{"name": "checkpoints", "mountPath": "/checkpoints", "readOnly": True}]
    command = ["python", "-c", _LOOK, name]
    log = run_to_its_end(kubectl, "look", {}, 5 * MINUTES, volumes=volumes, command=command, volumeMounts=mounts)
    found: dict[str, Any] = json.loads(log.splitlines()[-1])
    return found


def _check_files(found: dict[str, Any], processes: int) -> None:
    """Each process wrote its share of each checkpoint, and the final model is as it came."""
    shares = {
        f"{part}_0/__{rank}_0.distcp" for part in ("pytorch_model_fsdp", "optimizer") for rank in range(processes)
    }
    assert found["checkpoints"]
    for files in found["checkpoints"].values():
        assert shares <= set(files)
        assert not [name for name in files if name.endswith((".safetensors", ".bin"))], "the model is there once"
    assert (found["types"], found["said"], found["wrong"]) == (["F32"], "float32", {})


def test_four_nodes_shard_a_model_train_it_and_write_it(operator: Kubectl, kubectl: Kubectl) -> None:
    batch = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    run = _sharded_run("four-nodes", "Qwen3DecoderLayer", 4, max_steps=3, **batch)
    assert run["spec"]["trainer"]["nodes"] == example("slurm-4-nodes.yaml", "large")["spec"]["trainer"]["nodes"]
    _check_files(_train(kubectl, run), processes=8)
    assert {step["samples"] for step in trainer_events(kubectl, "four-nodes", "step")} == {16}


def test_experts_are_trained_synced_and_written(operator: Kubectl, kubectl: Kubectl) -> None:
    run = _sharded_run("experts", "Qwen3MoeDecoderLayer", 1, max_steps=4)
    run["spec"]["model"]["source"] = f"oci://{image('model-tiny-experts')}"
    _check_files(_train(kubectl, run), processes=2)


def test_long_torch_tests_pass_in_the_trainers_image(kubectl: Kubectl) -> None:
    """vLLM serves what was exported, and trackers that fail or hang end no run."""
    command = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-m", "large", "tests/unit"]
    log = run_to_its_end(kubectl, "long-torch-tests", {"OMP_NUM_THREADS": "2"}, 20 * MINUTES, command=command)
    assert " passed" in log, "no test ran"
