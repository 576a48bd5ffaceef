"""The vLLM pods of the run, as DNS knows them."""

from dataclasses import dataclass

from gymtrain_trainer.dns import pod_urls


@dataclass(frozen=True, order=True)
class VllmPod:
    """One vLLM server."""

    url: str  # http://ADDRESS:PORT


async def resolve(host: str, port: int) -> list[VllmPod]:
    """All pods behind a headless Service, sorted; none while it has no address."""
    return [VllmPod(url) for url in await pod_urls(host, port)]
