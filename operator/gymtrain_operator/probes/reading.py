"""Reading what a run's pod answers. Others' code runs there, so an answer has a bound, and leads nowhere else."""

from dataclasses import dataclass

import aiohttp

from gymtrain_operator.errors import OversizedAnswerError, ProbeError


@dataclass(frozen=True)
class Answer:
    """An HTTP answer that was read to its end."""

    status: int
    body: bytes


def probing_session() -> aiohttp.ClientSession:
    """The session for questions to pods. Nothing is unpacked: a kilobyte can be unpacked to a megabyte."""
    return aiohttp.ClientSession(trust_env=False, auto_decompress=False, headers={"Accept-Encoding": "identity"})


async def ask(session: aiohttp.ClientSession, url: str, *, seconds: float, most: int) -> Answer:
    """`GET url`. A redirect is an answer like any other: it is not followed.

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
            return Answer(answer.status, bytes(body))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ProbeError(f"{url}: {type(error).__name__}: {error}") from error
