"""The vLLM pods of the run, as DNS knows them."""

from dataclasses import dataclass

from gymtrain_trainer.dns import pod_urls


@dataclass(frozen=True, order=True)
class Pod:
    """One vLLM server."""

    url: str  # http://ADDRESS:PORT


async def resolve(host: str, port: int) -> list[Pod]:
    """All pods behind a headless Service, sorted; none while it has no address."""
    return [Pod(url) for url in await pod_urls(host, port)]
