"""The transport in the status: who chose it, why, and what the better ones lack."""

from typing import Any

import pytest

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.transports import LORA_ROUTES, ServerOffer
from gymtrain_api.wiring import CHECKPOINT_DIR
from tests.support.world import OFFER, World

LORA: dict[str, Any] = {
    "model": {"source": "hf://org/model", "lora": {"r": 8}},
    "trainer": {"checkpoint": {"claimName": "ckpt"}},
}
LORA_OFFER = ServerOffer(OFFER.routes | set(LORA_ROUTES), None, max_lora_rank=8, max_loras=6)


def _sync_events(world: World) -> list[str]:
    assert world.last is not None
    return [event.note for event in world.last.events if event.reason == Reason.TRANSPORT_CHOSEN]


def test_the_choice_names_what_the_better_transport_lacks() -> None:
    world = World().to_servers()
    world.reconcile(5, offers=(OFFER,))
    sync = world.status.weight_sync
    assert sync is not None
    assert sync.transport == "HTTPFull"
    assert sync.missing is not None
    assert len(sync.missing) == 1
    assert sync.missing[0].startswith("NCCL: ")
    (note,) = _sync_events(world)
    assert "Not chosen: NCCL: " in note


def test_an_adapter_goes_over_the_checkpoint_volume() -> None:
    world = World(**LORA).to_servers()
    world.reconcile(5, offers=(LORA_OFFER,))
    assert world.status.weight_sync is not None
    assert world.status.weight_sync.transport == "LoRAFilesystem"
    assert world.status.weight_sync.missing == []


def test_none_is_a_transport_where_the_spec_asks_for_it() -> None:
    world = World(weightSync={"transport": "None"}).to_servers()
    world.reconcile(5, offers=(ServerOffer(frozenset(), None),))
    assert world.status.weight_sync is not None
    assert world.status.weight_sync.transport == "None"
    assert world.condition(ConditionType.WEIGHT_SYNC_READY).status == "True"
    assert world.condition(ConditionType.FAILED).status == "False"


def test_what_the_trainer_uses_is_the_truth() -> None:
    world = World().to_servers()
    world.reconcile(5, offers=(OFFER,))
    world.trainer_reports("training", 1, transport="NCCL", transport_reason="Auto: full weights")
    world.reconcile(5)
    assert world.status.weight_sync is not None
    assert (world.status.weight_sync.transport, world.status.weight_sync.reason) == ("NCCL", "Auto: full weights")
    assert len(_sync_events(world)) == 1, "another transport is news"


def test_what_is_missing_is_still_found_out_where_the_trainer_was_first() -> None:
    world = World().to_servers()
    world.trainer_reports("training", 1, transport="HTTPFull", transport_reason="Auto: full weights")
    world.reconcile(5)
    assert world.status.weight_sync is not None
    assert world.status.weight_sync.missing is None
    world.reconcile(2, offers=(OFFER,))
    assert world.status.weight_sync.missing, "the transport stays, the rest is added"
    assert world.status.weight_sync.reason == "Auto: full weights"


def test_a_trainer_that_trains_outlives_servers_that_offer_nothing_now() -> None:
    world = World().to_servers()
    world.trainer_reports("training", 1, transport="HTTPFull")
    world.reconcile(5, offers=(ServerOffer(frozenset(), None),))
    assert world.condition(ConditionType.FAILED).status == "False"


def test_vllm_reads_adapters_where_the_trainer_writes_them() -> None:
    world = World(**LORA).to_servers()
    trainer = world.objects["Job"]["run-trainer-1"]["spec"]["template"]["spec"]
    vllm = world.objects["Deployment"]["run-inference"]["spec"]["template"]["spec"]
    claims = [
        [volume["persistentVolumeClaim"] for volume in pod["volumes"] if volume["name"] == "checkpoints"]
        for pod in (trainer, vllm)
    ]
    assert claims == [[{"claimName": "ckpt"}]] * 2
    written, read = (
        next(m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == CHECKPOINT_DIR)
        for pod in (trainer, vllm)
    )
    assert read == written | {"readOnly": True}


@pytest.mark.parametrize(
    "blocks",
    [
        {"trainer": {"checkpoint": {"size": "1Gi"}}},
        LORA | {"weightSync": {"transport": "HTTPFull"}},
    ],
)
def test_vllm_that_gets_no_adapters_has_no_business_with_checkpoints(blocks: dict[str, Any]) -> None:
    world = World(**blocks).to_servers()
    pod = world.objects["Deployment"]["run-inference"]["spec"]["template"]["spec"]
    assert "checkpoints" not in [volume["name"] for volume in pod["volumes"]]
