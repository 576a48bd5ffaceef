"""Asking vLLM what it offers. Its routes alone mislead, so the settings behind them are read too."""

import json
from typing import Any

import aiohttp

from gymtrain_api.transports import ServerOffer, read_offer
from gymtrain_api.wiring import INFERENCE_PORT
from gymtrain_operator.errors import ProbeError
from gymtrain_operator.probes.reading import ask
from gymtrain_operator.probes.urls import pod_url

_SECONDS = 5.0
_MAX_BYTES = 2 << 20  # vLLM 0.32's /openapi.json has 0.2 MB


async def server_offer(session: aiohttp.ClientSession, pod_ip: str) -> ServerOffer:
    """What one vLLM pod offers.

    Raises:
        ProbeError: it doesn't answer, or no JSON object. A missing /server_info is an offer without a
            backend, not an error: the choice of the transport says what is missing.
        OversizedAnswerError: it answers more than vLLM does.
    """
    openapi = await _get(session, pod_url(pod_ip, INFERENCE_PORT, "/openapi.json"))
    info = await _get(session, pod_url(pod_ip, INFERENCE_PORT, "/server_info?config_format=json"))
    return read_offer(openapi, info)


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """A JSON object; None where the route doesn't exist."""
    answer = await ask(session, url, seconds=_SECONDS, most=_MAX_BYTES)
    if answer.status in {403, 404}:
        return None
    if answer.status != 200:
        raise ProbeError(f"{url}: HTTP {answer.status}")
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise ProbeError(f"{url}: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ProbeError(f"{url}: the answer is no JSON object")
    return found
