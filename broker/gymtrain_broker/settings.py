"""What the broker takes from the run, and the rhythm of its work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path

from pydantic import ValidationError

from gymtrain_api import wiring
from gymtrain_api.runs import parse_run_config
from gymtrain_api.sandboxes import SandboxBackend
from gymtrain_api.spec import Sandboxes
from gymtrain_api.wiring import RunConfig
from gymtrain_broker import environment
from gymtrain_broker.errors import StartError


@dataclass(frozen=True)
class Rhythm:
    """The rhythm of the controller, in seconds."""

    pause: float = 0.25  # at least, between two rounds of the controller
    round: float = 1.0  # at most: time passes without events
    probe_first: float = 0.02  # between the first questions to a daemon that starts
    probe_most: float = 0.5
    reset: float = 30.0  # for a container to be back after its reset
    grace: float = 120.0  # a sandbox made ahead stays this long when no announcement names it any more
    remembered: float = 600.0  # final sandboxes can be asked about


@dataclass(frozen=True)
class Settings:
    """One broker."""

    run: str
    namespace: str
    uid: str
    spec: Sandboxes
    run_token: str
    token_secret: str
    service_account: str | None = None
    port: int = wiring.BROKER_PORT
    daemon_image: str = "gymtrain/sandbox:dev"
    pull_policy: str = "IfNotPresent"
    user_namespaces: bool = False
    image_volumes: bool = False
    daemon_port: int = wiring.SANDBOX_PORT
    backend: SandboxBackend = "Pod"
    kept_out: tuple[str, ...] = ()  # HOST:PORT that no sandbox may reach, and that each is asked about before its lease
    max_resources: Mapping[str, str] = field(default_factory=dict)  # of the cluster; the spec may have lower ones
    rhythm: Rhythm = field(default_factory=Rhythm)

    @property
    def idle_poll(self) -> float:
        """Seconds between two questions to each daemon how long it has been idle."""
        return min(30.0, max(1.0, self.spec.idle_timeout_seconds / 10))


def from_run(run: RunConfig, run_token: str) -> Settings:
    """The settings of the broker of `run`.

    Raises:
        StartError: the run has no spec.sandboxes.
    """
    if run.spec.sandboxes is None:
        raise StartError("the run has no spec.sandboxes: there is nothing for a broker to do")
    return Settings(
        run=run.name,
        namespace=run.namespace,
        uid=run.uid,
        spec=run.spec.sandboxes,
        run_token=run_token,
        token_secret=environment.token_secret(run),
        service_account=run.spec.service_account_name,
        port=environment.port(),
        daemon_image=environment.sandbox_image(),
        pull_policy=environment.pull_policy(),
        backend=environment.backend(),
        user_namespaces=environment.user_namespaces(),
        max_resources=environment.max_resources(),
        kept_out=_kept_out(run.spec.sandboxes),
        image_volumes=environment.image_volumes(),
    )


def _kept_out(sandboxes: Sandboxes) -> tuple[str, ...]:
    """The API server, which is always there, unless the spec opens its address."""
    address = environment.api_address()
    if address is None:
        return ()
    network = sandboxes.network
    ranges = [ip_network(cidr, strict=False) for cidr in network.cidrs] if network.mode == "EgressAllowed" else []
    host, port = address
    opened = any(ip_address(host) in one for one in ranges) and (not network.ports or port in network.ports)
    return () if opened else (f"[{host}]:{port}" if ":" in host else f"{host}:{port}",)


def read(path: Path, token_file: Path) -> Settings:
    """Reads run.json and the token.

    Raises:
        StartError: a file is missing, or holds something else.
    """
    try:
        run = parse_run_config(path.read_bytes())
        token = token_file.read_text().strip()
    except OSError as error:
        raise StartError(f"can't read the broker's files: {error}") from error
    except ValidationError as error:
        raise StartError(f"{path} isn't a run.json of this release: {error}") from error
    if not token:
        raise StartError(f"{token_file} is empty: it must contain the run's token")
    if not run.uid:
        raise StartError(f"{path} has no uid: sandboxes need the run as their owner, or they are never collected")
    return from_run(run, token)
