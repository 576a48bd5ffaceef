"""The run's token, which vLLM's control routes ask for."""

import os
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from gymtrain_api import wiring


def control_session(environ: Mapping[str, str] = os.environ) -> aiohttp.ClientSession:
    """A session for calls to vLLM pods and to nobody else: each call carries the token, where this pod has one."""
    token = read_token(environ)
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"} if token else None)


def read_token(environ: Mapping[str, str]) -> str:
    """The token; empty in a run whose vLLM pods ask for none, as those of earlier releases."""
    try:
        return Path(environ.get(wiring.ENV_RUN_TOKEN_FILE, wiring.RUN_TOKEN_FILE)).read_text().strip()
    except FileNotFoundError:
        return ""
