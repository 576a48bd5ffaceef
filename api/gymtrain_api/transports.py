"""Chooses the weight transport that a set of vLLM servers supports. Pure, for operator and trainer.

A route in `/openapi.json` counts only together with its settings in `/server_info`, because vLLM also lists
routes whose flags are missing.

| Model | Every server offers | Transport |
|---|---|---|
| LoRA | LoRA routes and --enable-lora, with a shared volume | LoRAFilesystem |
| both | backend nccl, with GPUs on both sides | NCCL (an adapter is merged) |
| both | backend gymtrain_pull | HTTPFull (an adapter is merged) |
| any | anything else | none: the run is refused, unless the spec says None |
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from gymtrain_api import vllm_releases
from gymtrain_api.spec import GymTrainingRunSpec

TransportName = Literal["NCCL", "LoRAFilesystem", "HTTPFull", "None"]

PULL_BACKEND = "gymtrain_pull"
NCCL_BACKEND = "nccl"
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"
LORA_MODE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"

# Routes of vLLM's weight-transfer API that every backend needs; /weight_info is there from 0.27 on.
UPDATE_ROUTES = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update")
NCCL_ROUTES = (*UPDATE_ROUTES, "/get_world_size", "/pause", "/resume")
LORA_ROUTES = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models")

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM accepts for --max-lora-rank
_DEFAULT_RANK = 8  # peft's default, if LoraConfig sets none


@dataclass(frozen=True)
class ServerOffer:
    """What one vLLM server supports.

    Attributes:
        release: such as 0.32.0; None if the server does not say.
        max_lora_rank: 0 without --enable-lora.
        max_loras: adapters that it holds at the same time; 0 without --enable-lora.
    """

    routes: frozenset[str]
    weight_transfer_backend: str | None
    max_lora_rank: int = 0
    max_loras: int = 0
    data_parallel_size: int = 1
    release: str | None = None


@dataclass(frozen=True)
class TransportChoice:
    """The chosen transport, or None. The reason then names what is missing.

    Attributes:
        missing: what each transport before it in the table lacks, one text each.
    """

    transport: TransportName | None
    reason: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Run:
    """What the run needs. None: the caller doesn't know it, so it isn't checked."""

    lora_rank: int | None
    adapters: int
    shared_volume: bool | None
    trainer_gpus: int | None
    inference_gpus: int | None


def read_offer(openapi: Mapping[str, Any] | None, server_info: Mapping[str, Any] | None) -> ServerOffer:
    """Reads the offer from a server's /openapi.json and /server_info?config_format=json, None for a missing route."""
    config = _part(server_info, "vllm_config")
    lora = _part(config, "lora_config")
    release = _part(server_info, "system_env").get("vllm_version")
    return ServerOffer(
        routes=frozenset(_part(openapi, "paths")),
        weight_transfer_backend=_part(config, "weight_transfer_config").get("backend"),
        max_lora_rank=_whole(lora.get("max_lora_rank")),
        max_loras=_whole(lora.get("max_loras")),
        data_parallel_size=_whole(_part(config, "parallel_config").get("data_parallel_size")) or 1,
        release=release if isinstance(release, str) and release else None,
    )


def release_at_least(offer: ServerOffer, major: int, minor: int) -> bool:
    """Whether the server's release is this one or later. If it does not say, /weight_info is taken for 0.28: only 0.27
    has it before."""
    if found := vllm_releases.parse(offer.release):
        return found >= (major, minor)
    return (major, minor) <= (0, 28) and "/weight_info" in offer.routes


def lora_rank(lora: Mapping[str, Any]) -> int:
    """The highest rank of an adapter with these settings of peft's LoraConfig."""
    pattern = lora.get("rank_pattern")
    ranks = [lora.get("r", _DEFAULT_RANK), *(pattern.values() if isinstance(pattern, Mapping) else ())]
    return max((rank for rank in ranks if isinstance(rank, int)), default=_DEFAULT_RANK)


def adapters_held(max_staleness: int) -> int:
    """Adapters that a server holds at the same time: those that valid samples use, and the one being loaded."""
    return max_staleness + 2


def planned(spec: GymTrainingRunSpec) -> TransportName:
    """The transport that vLLM is started for. Whether vLLM supports it is known once it runs."""
    requested = spec.weight_sync.transport
    if requested != "Auto":
        return requested
    if spec.model.lora is not None and spec.trainer.checkpoint is not None:
        return "LoRAFilesystem"
    return "NCCL" if spec.trainer.gpus and spec.inference.gpus else "HTTPFull"


def syncs_weights(spec: GymTrainingRunSpec) -> bool:
    """Whether the trainer sends weights to vLLM, which keeps those that it started with else."""
    return spec.weight_sync.transport != "None"


def may_send_adapters(spec: GymTrainingRunSpec) -> bool:
    """Whether vLLM may get the weights as adapters, which requests then ask for by name."""
    return spec.model.lora is not None and spec.weight_sync.transport in ("Auto", "LoRAFilesystem")


def takes_adapters(transport: TransportName) -> bool:
    """Whether vLLM has to be started for adapters."""
    return transport == "LoRAFilesystem"


def vllm_backend(transport: TransportName) -> str | None:
    """The weight-transfer backend that vLLM has to be started with; None where the transport needs none."""
    match transport:
        case "NCCL":
            return NCCL_BACKEND
        case "HTTPFull":
            return PULL_BACKEND
        case "LoRAFilesystem" | "None":
            return None
        case _:
            assert_never(transport)


def choose(
    requested: str,
    offers: Sequence[ServerOffer],
    *,
    lora: bool | Mapping[str, Any] = False,
    max_staleness: int = 0,
    shared_volume: bool | None = None,
    trainer_gpus: int | None = None,
    inference_gpus: int | None = None,
) -> TransportChoice:
    """Chooses the transport for a run on these servers (at least one).

    Args:
        requested: `spec.weightSync.transport`.
        offers: the offers of all servers.
        lora: `spec.model.lora`, or whether an adapter is trained, if its rank is not known.
        max_staleness: `spec.rollout.maxStaleness`.
        shared_volume: whether trainer and vLLM share the checkpoint volume; None if the caller does not know.
        trainer_gpus: GPUs of each trainer pod; None if the caller does not know.
        inference_gpus: GPUs of each vLLM pod; None if the caller does not know.
    """
    if requested == "None":
        return TransportChoice("None", "None: requested; vLLM keeps the weights that it started with")
    run = _Run(
        lora_rank(lora) if isinstance(lora, Mapping) else None,
        adapters_held(max_staleness),
        shared_volume,
        trainer_gpus,
        inference_gpus,
    )
    with_adapter = bool(lora) or isinstance(lora, Mapping)
    order: tuple[TransportName, ...] = ("LoRAFilesystem", "NCCL", "HTTPFull") if with_adapter else ("NCCL", "HTTPFull")
    if requested != "Auto":
        order = tuple(name for name in _CHECKS if name == requested)
        if requested == "LoRAFilesystem" and not with_adapter:
            return TransportChoice(None, "LoRAFilesystem: spec.model.lora is not set, so there is no adapter to send")
    lacks: list[str] = []
    for name in order:
        missing = [
            f"server {number} {what}"
            for number, offer in enumerate(offers)
            for what in (*_too_old(offer), *_CHECKS[name](offer, run))
        ]
        missing += _LACKS[name](run)
        if not missing:
            return TransportChoice(name, f"{requested}: {_why(name, with_adapter)}", tuple(lacks))
        lacks.append(f"{name}: {'; '.join(missing)}")
    reason = f"{requested}: no transport works: {' | '.join(lacks) or f'{requested} is not known'}"
    return TransportChoice(None, reason, tuple(lacks))


def _why(name: TransportName, with_adapter: bool) -> str:
    if name == "LoRAFilesystem":
        return "an adapter, and every server takes adapters from the checkpoint volume"
    weights = "the adapter merged into full weights" if with_adapter else "full weights"
    return f"{weights}, every server offers the {NCCL_BACKEND if name == 'NCCL' else PULL_BACKEND} backend"


def _pull(offer: ServerOffer, run: _Run) -> Iterable[str]:
    yield from _without_routes(offer, UPDATE_ROUTES, DEV_MODE)
    if offer.weight_transfer_backend != PULL_BACKEND:
        yield (
            f"has weight-transfer backend {offer.weight_transfer_backend!r}, not {PULL_BACKEND!r}: "
            "install the gymtrain plugin and pass --weight-transfer-config"
        )


def _nccl(offer: ServerOffer, run: _Run) -> Iterable[str]:
    yield from _without_routes(offer, NCCL_ROUTES, DEV_MODE)
    if offer.weight_transfer_backend != NCCL_BACKEND:
        yield (
            f"has weight-transfer backend {offer.weight_transfer_backend!r}, not {NCCL_BACKEND!r}: "
            f'pass --weight-transfer-config \'{{"backend":"{NCCL_BACKEND}"}}\''
        )


def _adapters(offer: ServerOffer, run: _Run) -> Iterable[str]:
    yield from _without_routes(offer, LORA_ROUTES, LORA_MODE)
    if not offer.max_loras:
        yield "runs without --enable-lora"
        return
    if run.lora_rank is not None and offer.max_lora_rank < run.lora_rank:
        yield f"has --max-lora-rank {offer.max_lora_rank}, the adapter has rank {run.lora_rank}"
    if offer.max_loras < run.adapters:
        yield f"has --max-loras {offer.max_loras}, spec.rollout.maxStaleness needs {run.adapters}"
    if offer.data_parallel_size > 1:
        yield f"has --data-parallel-size {offer.data_parallel_size}: an adapter would reach only one of its replicas"


_CHECKS: dict[TransportName, Callable[[ServerOffer, _Run], Iterable[str]]] = {
    "LoRAFilesystem": _adapters,
    "NCCL": _nccl,
    "HTTPFull": _pull,
}


def _too_old(offer: ServerOffer) -> Iterable[str]:
    if problem := vllm_releases.too_old(offer.release):
        yield f"can't be used: {problem}"


def _without_routes(offer: ServerOffer, routes: Iterable[str], setting: str) -> Iterable[str]:
    absent = [route for route in routes if route not in offer.routes]
    if absent:
        yield f"lacks {', '.join(absent)}: set {setting}"


def _nothing(run: _Run) -> list[str]:
    return []


def _without_volume(run: _Run) -> list[str]:
    if run.shared_volume is not False:
        return []
    return ["spec.trainer.checkpoint is not set, so trainer and vLLM share no volume"]


def _without_gpus(run: _Run) -> list[str]:
    sides = (("spec.trainer.gpus", run.trainer_gpus), ("spec.inference.gpus", run.inference_gpus))
    return [f"{field} is 0, and NCCL runs between GPUs" for field, gpus in sides if gpus == 0]


_LACKS: dict[TransportName, Callable[[_Run], list[str]]] = {
    "LoRAFilesystem": _without_volume,
    "NCCL": _without_gpus,
    "HTTPFull": _nothing,
}


def _part(document: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    part = document.get(name) if isinstance(document, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
