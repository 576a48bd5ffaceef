"""What a model takes to train and to serve, as computed from its shape."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.sizing.proposals import proposals, serving_proposal
from gymtrain_trainer.sizing.serving import Serving
from gymtrain_trainer.sizing.shapes import BUILT_IN, ModelShape, built_in, from_config, shape_of
from gymtrain_trainer.sizing.training import GIB, Adapter, Training, checkpoints, gpu, host, overlaps, staged

# Billions, from the model cards.
PUBLISHED = {
    "Qwen3-0.6B": 0.6,
    "Qwen3-1.7B": 1.7,
    "Qwen3-4B": 4.0,
    "Qwen3-8B": 8.2,
    "Qwen3-14B": 14.8,
    "Qwen3-32B": 32.8,
    "Qwen3-30B-A3B": 30.5,
}
LAYOUTS = ((1, 1), (1, 2), (1, 8), (2, 8), (4, 8))  # nodes, GPUs of each

SMALL = BUILT_IN["Qwen3-0.6B"]
MIDDLE = BUILT_IN["Qwen3-8B"]
LARGE = BUILT_IN["Qwen3-32B"]


def part(training: Training, name: str) -> int:
    """Bytes of one part of the training GPU."""
    return next(one.bytes for one in gpu(training).parts if one.name == name)


def config(**changed: Any) -> dict[str, Any]:
    """Of a small Llama."""
    return {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    } | changed


# --- shapes ---


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_shape_has_the_published_parameters(name: str) -> None:
    assert BUILT_IN[name].parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.02)


def test_a_shape_is_read_from_a_folder_and_from_the_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config()))
    shape = shape_of(str(tmp_path))
    assert replace(shape_of(str(tmp_path / "config.json")), name=shape.name) == shape
    # The embedding; of each layer queries and output, keys and values, the MLP and two norms; the last norm.
    assert shape.parameters == 100 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


def test_experts_and_the_router_count() -> None:
    sparse = config(model_type="qwen3_moe", head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    dense = from_config(config(model_type="qwen3", head_dim=16, intermediate_size=32), "dense")
    more = from_config(sparse, "sparse").parameters - dense.parameters
    assert more == 2 * (7 * 3 * 64 * 32 + 8 * 64)


def test_biases_of_qwen2_count() -> None:
    with_biases = from_config(config(model_type="qwen2"), "a").parameters
    assert with_biases - from_config(config(), "b").parameters == 2 * (64 + 32 + 32)


def test_a_model_of_unknown_layers_is_refused() -> None:
    with pytest.raises(SettingsError, match="deepseek_v3 isn't computed"):
        from_config(config(model_type="deepseek_v3"), "m")


def test_a_config_without_a_number_is_refused_by_its_name() -> None:
    lacking = config()
    del lacking["vocab_size"]
    with pytest.raises(SettingsError, match="vocab_size"):
        from_config(lacking, "m")


@pytest.mark.parametrize("source", ["hf://Qwen/Qwen3-4B-Instruct-2507", "pvc://models/Qwen3-4B/", "Qwen3-4B-Base"])
def test_a_source_names_a_built_in_shape(source: str) -> None:
    shape = built_in(source)
    assert shape is not None
    assert shape.parameters == BUILT_IN["Qwen3-4B"].parameters


def test_a_quantized_model_is_none_of_the_built_in_shapes() -> None:
    assert built_in("hf://Qwen/Qwen3-4B-FP8") is None


def test_the_context_of_2507_is_longer() -> None:
    shape = built_in("hf://Qwen/Qwen3-4B-Instruct-2507")
    assert shape is not None
    assert (shape.context, BUILT_IN["Qwen3-4B"].context) == (262_144, 40_960)


def test_a_large_tensor_is_nearly_a_message_of_its_own() -> None:
    """The head, which comes after three norms: the tensor before those has filled a message."""
    assert MIDDLE.largest_message == 2 * (151_936 * 4096 + 3 * 4096)


def test_a_message_ends_with_the_tensor_that_fills_it() -> None:
    matrix, embedding = 2 * 1024 * 3072, 2 * 1000 * 1024
    many = replace(SMALL, vocabulary=1000)
    assert embedding < 512 << 20 < many.largest_message <= (512 << 20) + matrix


# --- training ---


def test_each_part_of_a_sharded_model_is_what_a_hand_computes() -> None:
    """Qwen3-8B on 8 GPUs: 8,190,735,360 parameters, of which 192,946,432 in each layer and 622,329,856 in each of the
    two embeddings; 8,192 tokens."""
    training = Training(MIDDLE, gpus=8, sharded=True)
    assert {one.name: one.bytes for one in gpu(training).parts} == {
        "weights": 4 * 8_190_735_360 // 8,
        "gradients": 4 * 8_190_735_360 // 8,
        "optimizer": 8_190_735_360,
        "gathered layers": 2 * (5 * 192_946_432 + 2 * 622_329_856),
        "activations": 8192 * (36 * 2 * 4096 + 10 * 4096),
        # A tile, a slice of the head, its gradient in float32 and bf16, and those of the hidden states.
        "working memory": 2 * 4096 * 32768 + 2 * 32768 * 4096 + 6 * 622_329_856 + 8192 * 6 * 4096,
        "sync buffers": 2 * 2 * (622_329_856 + 3 * 4096),
        "reserve": 6 * GIB,
    }


def test_each_part_of_a_model_on_one_gpu_is_what_a_hand_computes() -> None:
    """Qwen3-0.6B, 32,768 tokens: 596,049,920 parameters, of which 28 x 15,730,944 in layers and 155,582,464 in the
    embedding that is tied."""
    training = Training(SMALL, length=32768, tokens=32768)
    layer = 32 * 1024 + 10 * 2048 + 10 * 1024 + 12 * 3072
    assert {one.name: one.bytes for one in gpu(training).parts if one.name != "sync buffers"} == {
        "weights": 4 * 596_049_920,
        "gradients": 4 * 596_049_920,
        "optimizer": 8 * 596_049_920,
        "activations": 32768 * (28 * 4 * 1024 + 16 * 1024),
        "working memory": 4 * 155_582_464 + 2 * 15_730_944 + 32768 * layer,
        "reserve": 6 * GIB,
    }


def test_ddp_holds_gradients_twice_and_all_of_the_rest() -> None:
    alone, several = Training(SMALL), Training(SMALL, gpus=8)
    assert part(several, "gradients") == 2 * part(alone, "gradients")
    assert part(several, "optimizer") == part(alone, "optimizer")


@pytest.mark.parametrize("shape", BUILT_IN.values(), ids=lambda shape: shape.name)
@pytest.mark.parametrize("adapter", [None, Adapter(16)])
def test_more_gpus_never_need_more_memory_of_each_if_sharded(shape: ModelShape, adapter: Adapter | None) -> None:
    totals = [
        gpu(Training(shape, nodes=nodes, gpus=gpus, sharded=True, adapter=adapter)).total
        for nodes, gpus in LAYOUTS
        if nodes * gpus > 1
    ]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize("shape", BUILT_IN.values(), ids=lambda shape: shape.name)
@pytest.mark.parametrize("sharded", [False, True])
def test_more_tokens_never_need_less_memory(shape: ModelShape, sharded: bool) -> None:
    asked = Training(shape, gpus=8, sharded=sharded)
    totals = [gpu(replace(asked, tokens=tokens)).total for tokens in (256, 1024, 8192, 32768, 131072)]
    assert totals == sorted(totals)


@pytest.mark.parametrize("shape", BUILT_IN.values(), ids=lambda shape: shape.name)
@pytest.mark.parametrize("sharded", [False, True])
def test_checkpointing_and_an_adapter_never_need_more(shape: ModelShape, sharded: bool) -> None:
    asked = Training(shape, gpus=8, sharded=sharded, checkpointing=False)
    for less in ({"checkpointing": True}, {"adapter": Adapter(16)}):
        assert gpu(replace(asked, **less)).total <= gpu(asked).total


def test_without_checkpointing_every_layer_is_kept() -> None:
    kept = {on: part(Training(MIDDLE, checkpointing=on), "activations") for on in (True, False)}
    assert kept[False] > 8 * kept[True]


def test_a_sharded_model_holds_its_share_of_gradients() -> None:
    assert part(Training(LARGE, nodes=4, gpus=8, sharded=True), "gradients") == 4 * LARGE.parameters // 32


def test_an_adapter_has_no_gradients_for_frozen_weights() -> None:
    adapted = Training(MIDDLE, adapter=Adapter(16))
    assert part(adapted, "gradients") == 4 * adapted.trained
    assert part(adapted, "weights") == 4 * (MIDDLE.parameters + adapted.trained)


def test_an_adapter_counts_inputs_and_outputs_of_its_modules() -> None:
    assert Adapter(16, ("q_proj", "v_proj")).parameters(MIDDLE) == 36 * 16 * ((4096 + 4096) + (4096 + 1024))


def test_an_adapter_of_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match="c_attn: Qwen3-8B has these linear layers: q_proj"):
        Adapter(16, ("q_proj", "c_attn")).parameters(MIDDLE)


def test_only_nccl_has_buffers_on_the_gpu_and_only_http_full_stages() -> None:
    names = [one.name for one in gpu(Training(SMALL, transport="HTTPFull")).parts]
    assert "sync buffers" not in names
    assert staged(Training(SMALL)) == 2 * 2 * SMALL.parameters


@pytest.mark.parametrize(("gpu_memory", "twice"), [(72, False), (80, True)])
def test_weights_are_copied_only_where_the_copy_fits_twice(gpu_memory: float, twice: bool) -> None:
    """A copy of 8 B is 15.3 GiB; 25.0 and 32.6 GiB are free."""
    assert overlaps(Training(MIDDLE, adapter=Adapter(16), gpu_memory=gpu_memory)) is twice


def test_each_process_loads_the_whole_model_unless_it_is_sharded() -> None:
    assert host(Training(LARGE, nodes=4, gpus=8)).total == 8 * (4 * GIB + 4 * LARGE.parameters)
    assert host(Training(LARGE, nodes=4, gpus=8, sharded=True)).detail["loading"] == 4 * LARGE.parameters


def test_the_processes_of_a_node_copy_their_shares_of_the_moments_for_a_checkpoint() -> None:
    details = [host(Training(LARGE, nodes=nodes, gpus=8, sharded=True)).detail["saving"] for nodes in (1, 4)]
    assert details == [8 * LARGE.parameters, 2 * LARGE.parameters]


def test_a_pod_that_is_too_small_is_told() -> None:
    assert not host(Training(LARGE, gpus=8), room=512 * GIB).fits
    assert host(Training(LARGE, gpus=8), room=1024 * GIB).fits


@pytest.mark.parametrize("sharded", [False, True])
def test_the_volume_holds_one_checkpoint_more_than_are_kept_and_the_final_model(sharded: bool) -> None:
    training = Training(MIDDLE, gpus=8, sharded=sharded, kept_checkpoints=2)
    assert checkpoints(training).total == (3 * 12 + 2) * MIDDLE.parameters


# --- serving ---


@pytest.mark.parametrize("shape", BUILT_IN.values(), ids=lambda shape: shape.name)
def test_more_gpus_hold_more_rollouts(shape: ModelShape) -> None:
    rollouts = [Serving(shape, n).rollouts for n in (1, 2, 4, 8)]
    assert rollouts == sorted(rollouts)


def test_a_cache_is_what_vllm_may_use_less_weights_and_reserve() -> None:
    # 36 layers, 8 key heads of 128, keys and values in two bytes.
    assert MIDDLE.kv_bytes(1) == 36 * 8 * 128 * 2 * 2
    left = int(0.9 * 80 * GIB) - 2 * 8_190_735_360 - 4 * GIB
    assert Serving(MIDDLE, utilization=0.9).rollouts == left // (147_456 * 8192)


def test_more_gpus_than_key_heads_repeat_them() -> None:
    sparse = BUILT_IN["Qwen3-30B-A3B"]
    assert sparse.kv_bytes(8) == sparse.kv_bytes(4) == sparse.kv_bytes(1) // 4


def test_a_server_without_room_for_one_rollout_gets_more_gpus() -> None:
    serving = Serving(LARGE, gpu_memory=40, utilization=0.9)
    assert not serving.fits
    wider = serving_proposal(serving)
    assert wider is not None
    assert (wider.tensor_parallel, wider.fits) == (2, True)


def test_gpus_that_do_not_divide_the_heads_are_refused() -> None:
    assert not Serving(BUILT_IN["Qwen3-14B"], 3).fits


def test_what_a_sync_needs_beside_vllm_counts() -> None:
    assert not Serving(MIDDLE, utilization=0.98).fits
    assert Serving(MIDDLE, utilization=0.98, syncs=False).fits


# --- proposals ---


@pytest.mark.parametrize("shape", BUILT_IN.values(), ids=lambda shape: shape.name)
@pytest.mark.parametrize(("nodes", "gpus"), LAYOUTS)
@pytest.mark.parametrize("tokens", [8192, 131_072])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_what_is_proposed_fits(shape: ModelShape, nodes: int, gpus: int, tokens: int, checkpointing: bool) -> None:
    asked = Training(shape, nodes, gpus, length=8192, tokens=tokens, checkpointing=checkpointing)
    found = proposals(asked)
    assert all(gpu(proposal.training).fits and proposal.changes for proposal in found)
    assert bool(found) != gpu(asked).fits


def test_what_fits_gets_no_proposal() -> None:
    assert proposals(Training(SMALL)) == []


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        (Training(SMALL, tokens=1 << 20), ["micro-batches"]),
        (Training(BUILT_IN["Qwen3-1.7B"], length=32768, tokens=32768, checkpointing=False), ["gradient_checkpointing"]),
        (Training(MIDDLE, gpus=8), ["fsdp"]),
    ],
    ids=["smaller micro-batches", "checkpointing", "sharding"],
)
def test_the_cheapest_change_that_is_enough_is_proposed(asked: Training, changes: list[str]) -> None:
    (found,) = proposals(asked)
    assert len(found.changes) == len(changes)
    assert all(text in change for text, change in zip(changes, found.changes, strict=True))


def test_a_model_that_is_too_large_gets_an_adapter_or_more_gpus() -> None:
    adapter, more = proposals(Training(MIDDLE))
    assert adapter.changes == ("model.lora: {r: 16, target_modules: all-linear}",)
    assert more.training.processes > 1
    assert more.training.adapter is None
    assert f"trainer: {{nodes: 1, gpus: {more.training.gpus}, processesPerNode: {more.training.gpus}}}" in more.changes


def test_more_gpus_are_the_fewest_that_are_enough() -> None:
    *_, more = proposals(Training(MIDDLE))
    half = replace(more.training, gpus=more.training.gpus // 2)
    assert not gpu(half).fits


def test_a_micro_batch_keeps_one_whole_sample() -> None:
    asked = Training(BUILT_IN["Qwen3-1.7B"], gpu_memory=64, length=65536, tokens=65536 * 5)
    (found,) = proposals(asked)
    assert found.training.tokens == 65536
    assert "per_device_train_batch_size: 1 with gradient_accumulation_steps times 5" in found.changes[0]
