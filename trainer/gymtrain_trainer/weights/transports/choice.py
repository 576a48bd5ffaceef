"""Finds out what the vLLM servers offer, and makes the transport that fits the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymtrain_api.transports import TransportName, choose
from gymtrain_trainer.weights.errors import TransportRefusedError
from gymtrain_trainer.weights.pods.probe import ServerReport, probe_servers, wait_for_servers
from gymtrain_trainer.weights.store.weight_store import WeightStore
from gymtrain_trainer.weights.sync_settings import SyncSettings
from gymtrain_trainer.weights.transports.http_full import HTTPFull
from gymtrain_trainer.weights.transports.lora_filesystem import LoRAFilesystem
from gymtrain_trainer.weights.transports.nccl.transport import NCCL
from gymtrain_trainer.weights.transports.none import NoTransport
from gymtrain_trainer.weights.transports.transport import ChosenTransport, Transport

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.transport import Parameters

logger = logging.getLogger(__name__)

ADAPTER_FOLDER = ".vllm_lora"  # below the checkpoints


@dataclass(frozen=True)
class TransportNeeds:
    """What the transports are made of.

    Attributes:
        requested: `spec.weightSync.transport`.
        store: folder that `weight_routes` serves.
        adapters: folder for adapters, at the same path in trainer and vLLM pods.
        parameters: the model's; called when a transport is ready to send.
        lora: `spec.model.lora`; None trains all weights.
        shared_volume: whether trainer and vLLM pods share the checkpoint volume; None if not known.
        trainer_gpus, inference_gpus: of each pod; None if not known.
        nodes: pods of each vLLM server.
    """

    requested: str
    store: WeightStore
    adapters: Path
    parameters: Parameters
    lora: Mapping[str, Any] | None = None
    max_staleness: int = 0
    shared_volume: bool | None = None
    trainer_gpus: int | None = None
    inference_gpus: int | None = None
    nodes: int = 1


def choose_transport(settings: SyncSettings, needs: TransportNeeds) -> ChosenTransport:
    """The transport, chosen by what every vLLM server supports. Waits for the first server.

    Raises:
        NoServersError: none answers in time.
        TransportRefusedError: none of the transports works; the message names what is missing for each.
    """
    reports = asyncio.run(_probe(settings))
    choice = choose(
        needs.requested,
        [report.offer for report in reports],
        lora=needs.lora if needs.lora is not None else False,
        max_staleness=needs.max_staleness,
        shared_volume=needs.shared_volume,
        trainer_gpus=needs.trainer_gpus,
        inference_gpus=needs.inference_gpus,
    )
    if choice.transport is None:
        raise TransportRefusedError(choice.reason)
    dtypes = {report.dtype for report in reports}
    if len(dtypes) > 1:
        raise TransportRefusedError(f"vLLM pods hold weights of different types: {sorted(map(str, dtypes))}")
    dtype = dtypes.pop()
    logger.info("weight transport %s; vLLM holds %s", choice.reason, dtype)
    return ChosenTransport(_make(choice.transport, needs, dtype), choice.reason, dtype)


def _make(name: TransportName, needs: TransportNeeds, dtype: str | None) -> Transport:
    match name:
        case "NCCL":
            resendable = needs.lora is None
            return NCCL(needs.parameters, dtype=dtype, resendable=resendable, max_staleness=needs.max_staleness)
        case "LoRAFilesystem":
            return LoRAFilesystem(needs.adapters, max_staleness=needs.max_staleness)
        case "HTTPFull":
            return HTTPFull(needs.store, dtype=dtype, max_staleness=needs.max_staleness, nodes=needs.nodes)
        case "None":
            return NoTransport()


async def _probe(settings: SyncSettings) -> list[ServerReport]:
    pods = await wait_for_servers(settings, deadline_seconds=settings.timeout_seconds)
    return await probe_servers(pods)
