"""What pods and trainer say of themselves, asked with short deadlines."""

import aiohttp
from pydantic import ValidationError

from gymtrain_api.wiring import WeightsHeld
from gymtrain_gateway.pod_choice import PodFacts, Statement

_SECONDS = 5.0  # vLLM answers nothing while its engine works in the same process
_CONNECT_SECONDS = 2.0
_TIMEOUT = aiohttp.ClientTimeout(total=_SECONDS, sock_connect=_CONNECT_SECONDS)
HELD_PATH = "/weights/held"


class SlowError(Exception):
    """No answer in time, but the pod is there: a busy engine looks like that."""


async def ask_pod(http: aiohttp.ClientSession, pod: str, known: PodFacts | None, *, adapters: bool) -> PodFacts:
    """Asks one pod. What never changes in a pod is not asked again.

    Raises:
        SlowError: the pod is too busy to answer.
    """
    try:
        label = await _field(http, f"{pod}/weight_info", "weight_version")
        paused = await _field(http, f"{pod}/is_paused", "is_paused")
        models, length = (known.models, known.max_model_len) if known and known.answers else ((), None)
        if adapters or not models:
            models, length = await _models(http, pod)
    except (TimeoutError, aiohttp.ServerTimeoutError) as error:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return PodFacts(answers=False, trouble="doesn't answer: no connection")
        raise SlowError from error
    except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
        return PodFacts(answers=False, trouble=f"doesn't answer: {error or type(error).__name__}")
    return PodFacts(
        answers=True,
        paused=bool(paused),
        label=None if label is None else str(label),
        models=models,
        max_model_len=length,
    )


async def weight_label(http: aiohttp.ClientSession, pod: str) -> str | None:
    """The label of the weights that the pod holds now; None where it can't say it."""
    try:
        label = await _field(http, f"{pod}/weight_info", "weight_version")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
        return None
    return None if label is None else str(label)


async def ask_trainer(http: aiohttp.ClientSession, pod: str) -> Statement | None:
    """What the trainer says; None where this pod of it says nothing."""
    try:
        async with http.get(pod + HELD_PATH, timeout=_TIMEOUT) as response:
            if response.status != 200:
                return None
            held = WeightsHeld.model_validate_json(await response.read())
    except (TimeoutError, aiohttp.ClientError, OSError, ValidationError):
        return None
    return Statement(held.version, held.pods)


async def _field(http: aiohttp.ClientSession, url: str, name: str) -> object:
    """A field of a JSON answer; None where the release has no such route."""
    async with http.get(url, timeout=_TIMEOUT) as response:
        if response.status == 404:
            return None
        if response.status != 200:
            raise ValueError(f"{url} says {response.status}")
        return (await response.json(content_type=None))[name]


async def _models(http: aiohttp.ClientSession, pod: str) -> tuple[tuple[str, ...], int | None]:
    """Names that the pod serves, and the length of its context."""
    async with http.get(f"{pod}/v1/models", timeout=_TIMEOUT) as response:
        if response.status != 200:
            raise ValueError(f"{pod}/v1/models says {response.status}")
        models = (await response.json(content_type=None))["data"]
    lengths = [model["max_model_len"] for model in models if model.get("max_model_len")]
    return tuple(str(model["id"]) for model in models), min(lengths, default=None)
