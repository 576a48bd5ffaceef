"""Which weight transport a set of vLLM servers supports: one pure choice, used by operator and trainer.

The servers' claims (`/openapi.json`) are taken only together with the settings behind them
(`/server_info`): routes show up without the flags that make them work.
"""

from dataclasses import dataclass
from typing import Literal

Transport = Literal["HTTPFull"]

# Routes of vLLM's weight-transfer API that the pull backend needs; 0.25 has no /weight_info.
_PULL_ROUTES = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update")
PULL_BACKEND = "gymtrain_pull"


@dataclass(frozen=True)
class ServerOffer:
    """What one vLLM server proved to offer."""

    routes: frozenset[str]
    weight_transfer_backend: str | None


@dataclass(frozen=True)
class Choice:
    """The transport, or None with the reason that names what is missing."""

    transport: Transport | None
    reason: str


def choose(requested: str, offers: list[ServerOffer]) -> Choice:
    """The transport for a full-weight model on these servers (at least one).

    `requested` is `spec.weightSync.transport`.
    """
    missing: list[str] = []
    for number, offer in enumerate(offers):
        absent = [route for route in _PULL_ROUTES if route not in offer.routes]
        if absent:
            missing.append(f"server {number} lacks {', '.join(absent)}: set VLLM_SERVER_DEV_MODE=1")
        if offer.weight_transfer_backend != PULL_BACKEND:
            missing.append(
                f"server {number} has weight-transfer backend {offer.weight_transfer_backend!r}, not {PULL_BACKEND!r}: "
                "install the gymtrain plugin and pass --weight-transfer-config"
            )
    if missing:
        return Choice(None, f"{requested}: no transport works: {'; '.join(missing)}")
    return Choice("HTTPFull", f"{requested}: full weights, every server offers the {PULL_BACKEND} backend")
