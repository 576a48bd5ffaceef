"""Asking the trainer how far it is."""

import aiohttp
from pydantic import ValidationError

from gymtrain_api.wiring import TRAINER_PORT, TrainerProgress
from gymtrain_operator.errors import ProbeError
from gymtrain_operator.probes.urls import pod_url

_DEADLINE = aiohttp.ClientTimeout(total=2.0)
_MAX_BYTES = 1 << 20


async def trainer_progress(session: aiohttp.ClientSession, pod_ip: str) -> TrainerProgress:
    """`GET /progress` of the first trainer pod.

    Raises:
        ProbeError: no answer within 2 s, or no progress document.
    """
    url = pod_url(pod_ip, TRAINER_PORT, "/progress")
    try:
        async with session.get(url, timeout=_DEADLINE) as answer:
            body = await answer.content.read(_MAX_BYTES)
            if answer.status != 200:
                raise ProbeError(f"{url}: HTTP {answer.status}")
        return TrainerProgress.model_validate_json(body)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProbeError(f"{url}: {type(error).__name__}: {error}") from error
    except ValidationError as error:
        raise ProbeError(f"{url}: no progress document: {error}") from error
