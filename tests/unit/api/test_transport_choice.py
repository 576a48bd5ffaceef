"""The table of transports: what the run wants against what the servers prove."""

from dataclasses import replace
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.transports import (
    LORA_ROUTES,
    NCCL_BACKEND,
    NCCL_ROUTES,
    PULL_BACKEND,
    ServerOffer,
    choose,
    lora_rank,
    planned,
    read_offer,
    release_at_least,
)
from tests.support.specs import smallest_run

NCCL = ServerOffer(frozenset(NCCL_ROUTES), NCCL_BACKEND)
PULL = ServerOffer(frozenset(NCCL_ROUTES), PULL_BACKEND)
LORA = ServerOffer(frozenset((*NCCL_ROUTES, *LORA_ROUTES)), None, max_lora_rank=16, max_loras=6)
BARE = ServerOffer(frozenset(LORA_ROUTES), None)  # LoRA routes appear without --enable-lora


@pytest.mark.parametrize(
    ("offers", "run", "expected"),
    [
        ([NCCL], {}, "NCCL"),
        ([PULL], {}, "HTTPFull"),
        ([PULL, PULL], {}, "HTTPFull"),
        ([LORA], {"lora": {"r": 16}}, "LoRAFilesystem"),
        ([NCCL], {"lora": {"r": 16}}, "NCCL"),
        ([PULL], {"lora": {"r": 16}}, "HTTPFull"),
        ([LORA], {}, None),
        ([NCCL, PULL], {}, None),
        ([BARE], {"lora": True}, None),
    ],
)
def test_auto_takes_the_first_that_every_server_offers(
    offers: list[ServerOffer], run: dict[str, Any], expected: str | None
) -> None:
    assert choose("Auto", offers, **run).transport == expected


@pytest.mark.parametrize(
    ("offer", "run", "text"),
    [
        (BARE, {"lora": True}, "server 0 runs without --enable-lora"),
        (LORA, {"lora": {"r": 64}}, "has --max-lora-rank 16, the adapter has rank 64"),
        (LORA, {"lora": {"r": 8}, "max_staleness": 8}, "has --max-loras 6, spec.rollout.maxStaleness needs 10"),
        (replace(LORA, data_parallel_size=2), {"lora": {}}, "has --data-parallel-size 2"),
        (LORA, {"lora": {}, "shared_volume": False}, "spec.trainer.checkpoint is not set"),
        (NCCL, {"trainer_gpus": 0}, "spec.trainer.gpus is 0"),
        (NCCL, {"inference_gpus": 0}, "spec.inference.gpus is 0"),
        (ServerOffer(frozenset(), NCCL_BACKEND), {}, "lacks /init_weight_transfer_engine"),
        (replace(PULL, release="0.24.0"), {}, "server 0 can't be used: vLLM 0.24.0 is too old: gymtrain needs 0.25"),
        (replace(PULL, release="0.25.1+cpu"), {}, ""),
        (replace(PULL, release="0.1.dev1+gabc"), {}, ""),
        (PULL, {}, ""),
    ],
)
def test_what_is_missing_is_named(offer: ServerOffer, run: dict[str, Any], text: str) -> None:
    choice = choose("Auto", [offer], **run)
    assert text in choice.reason
    assert choice.transport is None or not text


def test_a_transport_that_is_asked_for_is_taken_or_refused() -> None:
    assert choose("HTTPFull", [PULL]).transport == "HTTPFull"
    refused = choose("NCCL", [PULL])
    assert refused.transport is None
    assert "not 'nccl'" in refused.reason


def test_none_only_where_it_is_asked_for() -> None:
    assert choose("None", [BARE]).transport == "None"
    assert choose("Auto", [BARE]).transport is None


def test_an_adapter_transport_without_an_adapter_is_refused() -> None:
    assert "spec.model.lora is not set" in choose("LoRAFilesystem", [LORA]).reason


def test_an_offer_is_read_from_the_servers_own_words() -> None:
    info = {
        "vllm_config": {
            "weight_transfer_config": {"backend": "nccl"},
            "lora_config": {"max_lora_rank": 32, "max_loras": 4},
            "parallel_config": {"data_parallel_size": 2},
        },
        "system_env": {"vllm_version": "0.32.0+cpu"},
    }
    offer = read_offer({"paths": {"/pause": {}}}, info)
    assert offer == ServerOffer(frozenset({"/pause"}), "nccl", 32, 4, 2, "0.32.0+cpu")


@pytest.mark.parametrize("info", [None, {}, {"vllm_config": "text"}, {"vllm_config": {"lora_config": None}}])
def test_a_server_that_says_little_offers_little(info: Any) -> None:
    assert read_offer(None, info) == ServerOffer(frozenset(), None)


@pytest.mark.parametrize(
    ("release", "routes", "expected"),
    [("0.28.0", [], True), ("0.27.1", [], False), ("1.0", [], True), (None, ["/weight_info"], True), (None, [], False)],
)
def test_the_release_decides_and_else_a_route(release: str | None, routes: list[str], expected: bool) -> None:
    assert release_at_least(ServerOffer(frozenset(routes), None, release=release), 0, 28) is expected


def test_the_rank_is_the_highest_of_the_pattern() -> None:
    assert lora_rank({"r": 8, "rank_pattern": {"q_proj": 32}}) == 32
    assert lora_rank({}) == 8


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ({}, "HTTPFull"),
        ({"trainer": {"gpus": 1}, "inference": {"gpus": 1}}, "NCCL"),
        ({"trainer": {"gpus": 1}}, "HTTPFull"),
        ({"trainer": {"checkpoint": {"size": "1Gi"}}, "lora": {"r": 8}}, "LoRAFilesystem"),
        ({"lora": {"r": 8}}, "HTTPFull"),
        ({"weightSync": {"transport": "None"}}, "None"),
        ({"weightSync": {"transport": "HTTPFull"}, "trainer": {"gpus": 1}, "inference": {"gpus": 1}}, "HTTPFull"),
    ],
)
def test_vllm_is_started_for_the_transport_that_fits_the_spec(blocks: dict[str, Any], expected: str) -> None:
    model = {"source": "hf://Qwen/Qwen3-0.6B", "lora": blocks.pop("lora", None)}
    spec = GymTrainingRunSpec.model_validate(smallest_run(model=model, **blocks)["spec"])
    assert planned(spec) == expected
