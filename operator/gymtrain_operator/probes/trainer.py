"""Asking the trainer how far it is."""

import aiohttp
from pydantic import ValidationError

from gymtrain_api.wiring import TRAINER_PORT, TrainerProgress
from gymtrain_operator.errors import ProbeError
from gymtrain_operator.probes.reading import ask
from gymtrain_operator.probes.urls import pod_url

_SECONDS = 2.0
_MAX_BYTES = 64 << 10  # commonly 1 KiB


async def trainer_progress(session: aiohttp.ClientSession, pod_ip: str) -> TrainerProgress:
    """`GET /progress` of the first trainer pod.

    Raises:
        ProbeError: no answer within 2 s, or no progress document.
    """
    url = pod_url(pod_ip, TRAINER_PORT, "/progress")
    answer = await ask(session, url, seconds=_SECONDS, most=_MAX_BYTES)
    if answer.status != 200:
        raise ProbeError(f"{url}: HTTP {answer.status}")
    try:
        return TrainerProgress.model_validate_json(answer.body)
    except ValidationError as error:
        raise ProbeError(f"{url}: no progress document: {error}") from error
