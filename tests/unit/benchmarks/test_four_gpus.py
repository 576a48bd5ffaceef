"""The runs and the arithmetic of benchmarks.gpu.four_gpus."""

import pytest

from benchmarks.gpu import four_gpus
from benchmarks.gpu.four_gpus import CASES, run_of
from gymtrain_api.spec import GymTrainingRunSpec

ONE_EACH = ("learning_one", "one_each", "experts")


def steps(*seconds: float) -> list[dict[str, float]]:
    return [
        {"seconds": one, "samples": 64, "tokens": 64 * 256, "reward": number / 10, "weight_sync_s": one / 2}
        for number, one in enumerate(seconds)
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_valid_run_of_64_rollouts_a_step(name: str) -> None:
    run = run_of(CASES[name])
    spec = GymTrainingRunSpec.model_validate(run["spec"])
    config = spec.trainer.config
    assert spec.trainer.processes_per_node == spec.trainer.gpus
    rollouts = config["per_device_train_batch_size"] * config["gradient_accumulation_steps"]
    assert rollouts * spec.trainer.processes_per_node == 64


@pytest.mark.parametrize("name", [name for name in CASES if name not in ONE_EACH])
def test_a_case_takes_four_gpus_and_shards(name: str) -> None:
    spec = run_of(CASES[name])["spec"]
    assert spec["trainer"]["gpus"] + spec["inference"]["replicas"] * spec["inference"]["gpus"] == 4
    assert spec["trainer"]["config"]["fsdp"] is True


@pytest.mark.parametrize("name", ONE_EACH)
def test_for_comparison_a_case_takes_one_gpu_on_each_side(name: str) -> None:
    spec = run_of(CASES[name])["spec"]
    assert (spec["trainer"]["gpus"], spec["inference"]["replicas"], spec["inference"]["gpus"]) == (1, 1, 1)


def test_pods_that_share_ipc_name_one_host_to_nccl() -> None:
    spec = run_of(CASES["fifty"], shared_ipc=True)["spec"]
    for part in (spec["inference"], spec["trainer"]):
        pod = part["template"]["spec"]
        assert pod["hostIPC"] is True
        told = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        assert told["NCCL_HOSTID"] == "one-node"
        assert told["NCCL_NVLS_ENABLE"] == "0", "what the pod was told before is still there"


def test_the_first_two_steps_are_not_counted() -> None:
    found = four_gpus.figures(steps(100, 50, 4, 2, 4), ranks=2, prompt=64)
    assert (found["steps"], found["step_s"], found["samples_per_s"]) == (3, 4, 16)
    assert found["tokens_per_s_gpu"] == 64 * (256 + 64) / 4 / 2
    assert found["sync_s"] == 2
    assert found["wait_s"] is None, "no line says it"


def test_the_share_of_the_peak_is_that_of_the_parameters_and_attention() -> None:
    found = {"tokens_per_s_gpu": 1000.0}
    assert four_gpus.mfu(found, "Qwen3-8B", length=320) == pytest.approx(1000 * 6 * 8.19e9 / 989e12, rel=0.01)


def test_of_experts_those_count_that_a_token_sees() -> None:
    # A layer: 8 experts of 3 x 1024 x 384, attention of 1024 x (2 x 2048 + 2 x 512), 64 numbers of the router; and
    # two matrices of 151,936 x 1024.
    seen = 32 * (8 * 3 * 1024 * 384 + 1024 * 5120 + 1024 * 64) + 2 * 151_936 * 1024
    found = four_gpus.mfu({"tokens_per_s_gpu": 100_000.0}, "Qwen3-3B-experts", length=320)
    assert found == pytest.approx(100_000 * 6 * seen / 989e12, rel=0.03)


def test_a_checkpoint_took_from_the_end_of_its_step_until_it_is_told() -> None:
    log = (
        '{"event": "step", "step": 8, "time": 1795787349.632}\n'
        "2026-11-27 13:51:03,585 INFO checkpoint /gymtrain/checkpoints/checkpoint-8\n"
        '{"event": "step", "step": 9, "time": 1795787472.0}\n'
    )
    assert four_gpus.checkpoint_seconds(log, 8) == 113.4
    assert four_gpus.checkpoint_seconds(log, 9) is None
