"""What the pods of a run say over HTTP: the trainer, how far it is; vLLM, what it offers.

Others' code runs in those pods, so an answer has a bound, nothing of it is unpacked, and it leads nowhere else.
"""

import json
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError

from gymtrain_api.transports import ServerOffer, read_offer
from gymtrain_api.wiring import INFERENCE_PORT, TRAINER_PORT, TrainerProgress
from gymtrain_operator.errors import OversizedAnswerError, ProbeError

_TRAINER_SECONDS = 2.0
_TRAINER_MAX_BYTES = 64 << 10  # commonly 1 KiB
_INFERENCE_SECONDS = 5.0
_INFERENCE_MAX_BYTES = 2 << 20  # vLLM 0.32's /openapi.json has 0.2 MB


@dataclass(frozen=True)
class _Answer:
    """An HTTP answer that was read to its end."""

    status: int
    body: bytes


def probing_session() -> aiohttp.ClientSession:
    """Opens the session for probes. It unpacks nothing: a kilobyte can be unpacked to a megabyte."""
    return aiohttp.ClientSession(trust_env=False, auto_decompress=False, headers={"Accept-Encoding": "identity"})


async def trainer_progress(session: aiohttp.ClientSession, pod_ip: str) -> TrainerProgress:
    """Asks the first trainer pod for its progress (`GET /progress`).

    Raises:
        ProbeError: no answer within 2 s, or not a progress document.
    """
    url = _pod_url(pod_ip, TRAINER_PORT, "/progress")
    answer = await _get(session, url, seconds=_TRAINER_SECONDS, most=_TRAINER_MAX_BYTES)
    if answer.status != 200:
        raise ProbeError(f"{url}: HTTP {answer.status}")
    try:
        return TrainerProgress.model_validate_json(answer.body)
    except ValidationError as error:
        raise ProbeError(f"{url}: not a progress document: {error}") from error


async def server_offer(session: aiohttp.ClientSession, pod_ip: str) -> ServerOffer:
    """Asks one vLLM pod what it offers. Its routes alone mislead, so the settings behind them are read too.

    Raises:
        ProbeError: it doesn't answer, or no JSON object. A missing /server_info is an offer without a
            backend, not an error: the choice of the transport says what is missing.
        OversizedAnswerError: it answers more than vLLM does.
    """
    openapi = await _get_object(session, _pod_url(pod_ip, INFERENCE_PORT, "/openapi.json"))
    info = await _get_object(session, _pod_url(pod_ip, INFERENCE_PORT, "/server_info?config_format=json"))
    return read_offer(openapi, info)


async def _get_object(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """Reads a JSON object; None if the route doesn't exist."""
    answer = await _get(session, url, seconds=_INFERENCE_SECONDS, most=_INFERENCE_MAX_BYTES)
    if answer.status in {403, 404}:
        return None
    if answer.status != 200:
        raise ProbeError(f"{url}: HTTP {answer.status}")
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise ProbeError(f"{url}: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ProbeError(f"{url}: the answer isn't a JSON object")
    return found


async def _get(session: aiohttp.ClientSession, url: str, *, seconds: float, most: int) -> _Answer:
    """Sends `GET url`. A redirect is an answer like any other: it is not followed.

    Raises:
        ProbeError: there was no whole answer within `seconds`.
        OversizedAnswerError: it is longer than `most` bytes, of which no more were read.
    """
    try:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with session.get(url, timeout=timeout, allow_redirects=False) as answer:
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > most:
                    raise OversizedAnswerError(f"{url}: the answer is longer than {most >> 10} KiB")
            return _Answer(answer.status, bytes(body))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ProbeError(f"{url}: {type(error).__name__}: {error}") from error


def _pod_url(ip: str, port: int, path: str) -> str:
    """Builds the URL of a pod's port; IPv6 addresses stand in brackets."""
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{port}{path}"
