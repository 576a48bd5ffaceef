"""Settings of the provider: the mapping below `gymtrain:` in the Gym config, and the pod's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gymtrain_api.wiring import BROKER_TOKEN_FILE, ENV_BROKER_TOKEN_FILE, ENV_BROKER_URL
from gymtrain_gym.sandbox.errors import SandboxSettingsError

ROUTES = ("direct", "broker")


@dataclass(frozen=True)
class Settings:
    """How to reach the broker and the sandboxes."""

    broker_url: str
    token_file: Path
    through_broker: bool = False  # commands and files go through the broker: for places that can't reach pods
    create_timeout_seconds: float | None = None  # of queue and start together; None: the run's spec decides

    @property
    def token(self) -> str:
        """The run's token, read from its file each time: a rotated Secret reaches it without a restart.

        Raises:
            SandboxSettingsError: the file is missing or empty.
        """
        try:
            token = self.token_file.read_text().strip()
        except OSError as error:
            raise SandboxSettingsError(
                f"the broker's token can't be read: {error}. Mount the run's broker Secret, or set "
                f"{ENV_BROKER_TOKEN_FILE}"
            ) from error
        if not token:
            raise SandboxSettingsError(f"the broker's token file {self.token_file} is empty")
        return token


def read(
    broker_url: str | None = None,
    token_file: str | None = None,
    route: str = "direct",
    create_timeout_s: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from the config's values, else from the environment.

    Raises:
        SandboxSettingsError: a value is missing or makes no sense; the text says where to set it.
    """
    url = broker_url or environment.get(ENV_BROKER_URL, "")
    if not url:
        raise SandboxSettingsError(
            f"no broker to get sandboxes from: {ENV_BROKER_URL} is not set. The operator sets it where the run has "
            "spec.sandboxes (sandboxes: {} is enough)"
        )
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise SandboxSettingsError(f"the broker's URL is {url!r}, expected http://HOST:PORT")
    if route not in ROUTES:
        raise SandboxSettingsError(f"sandbox.gymtrain.route is {route!r}, expected one of {', '.join(ROUTES)}")
    if create_timeout_s is not None and create_timeout_s <= 0:
        raise SandboxSettingsError(f"sandbox.gymtrain.create_timeout_s is {create_timeout_s}, expected more than 0")
    return Settings(
        broker_url=url.rstrip("/"),
        token_file=Path(token_file or environment.get(ENV_BROKER_TOKEN_FILE) or BROKER_TOKEN_FILE),
        through_broker=route == "broker",
        create_timeout_seconds=create_timeout_s,
    )
