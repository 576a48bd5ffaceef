"""What the vLLM servers support, and waiting for them to start."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymtrain_api.transports import ServerOffer, read_offer
from gymtrain_trainer.weights.errors import NoServersError, PodError
from gymtrain_trainer.weights.pods.client import PodClient, VllmPod, find_pods
from gymtrain_trainer.weights.pods.run_token import control_session
from gymtrain_trainer.weights.sync_settings import SyncSettings

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class ServerReport:
    """One server, as its /openapi.json and /server_info tell."""

    pod: VllmPod
    offer: ServerOffer
    dtype: str | None  # of the weights, such as float32
    max_model_len: int | None  # tokens of prompt and completion together
    release: str | None  # such as 0.32.0


async def wait_for_servers(
    settings: SyncSettings,
    *,
    deadline_seconds: float,
    count: Callable[[], int] = lambda: 1,
    on_wait: Callable[[str], None] | None = None,
) -> list[VllmPod]:
    """Returns once `count()` vLLM pods answer /health. They need not be ready: without weights no pod is.

    Args:
        count: asked at each look, as pods may be added or taken away meanwhile.

    Raises:
        NoServersError: not in time; says what was seen last.
    """
    deadline = time.monotonic() + deadline_seconds
    async with control_session() as session:
        while True:
            pods = await find_pods(settings.pods_host, settings.pods_port)
            problems = await asyncio.gather(*(_problem(PodClient(session, pod)) for pod in pods))
            up = [pod for pod, problem in zip(pods, problems, strict=True) if problem is None]
            wanted = count()
            if len(up) >= wanted:
                return up
            seen = "; ".join(filter(None, problems)) or f"{settings.pods_host} has no address yet"
            if time.monotonic() > deadline:
                raise NoServersError(f"{len(up)} of {wanted} vLLM pods came up in {deadline_seconds:.0f} s: {seen}")
            if on_wait is not None:
                on_wait(f"vLLM: {len(up)} of {wanted} pods up ({seen})")
            await asyncio.sleep(_LOOK_SECONDS)


async def _problem(client: PodClient) -> str | None:
    try:
        await client.health()
    except PodError as error:
        return str(error)
    return None


async def probe_servers(pods: list[VllmPod]) -> list[ServerReport]:
    """Asks every pod; one that fails to answer is left out.

    Raises:
        NoServersError: none answered.
    """
    async with control_session() as session:
        found = await asyncio.gather(*(probe(PodClient(session, pod)) for pod in pods), return_exceptions=True)
    reports = [report for report in found if isinstance(report, ServerReport)]
    if reports:
        return reports
    raise NoServersError("no vLLM pod answered the probe: " + "; ".join(map(str, found)))


async def probe(client: PodClient) -> ServerReport:
    """Asks one pod.

    Raises:
        PodError: it doesn't answer.
    """
    openapi = await client.openapi()
    try:
        info = await client.server_info()
    except PodError:
        info = {}  # no such route without VLLM_SERVER_DEV_MODE: the choice of the transport says so
    offer = read_offer(openapi, info)
    config = info.get("vllm_config")
    config = config if isinstance(config, dict) else {}
    model = _part(config, "model_config")
    dtype = str(model["dtype"]).removeprefix("torch.") if "dtype" in model else None
    length = model.get("max_model_len")
    return ServerReport(
        pod=client.pod,
        offer=offer,
        dtype=dtype,
        max_model_len=length if isinstance(length, int) else None,
        release=offer.release,
    )


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}
