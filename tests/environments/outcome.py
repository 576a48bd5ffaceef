"""What came out for an environment, and how a failure is told apart."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

type Verdict = Literal[
    "runs", "needs packages", "needs keys", "needs a service", "needs network", "needs a GPU", "fails"
]

VERDICTS: tuple[Verdict, ...] = (
    "runs",
    "needs packages",
    "needs keys",
    "needs a service",
    "needs network",
    "needs a GPU",
    "fails",
)
NOTE_LENGTH = 300

_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|Network is unreachable|ConnectError"
    r"|Cannot connect to host (?!127\.0\.0\.1)|getaddrinfo failed|Max retries exceeded|LocalEntryNotFoundError"
    r"|git'?,? '?clone\b|couldn't connect to '?https?://|offline mode|Failed to resolve|ProxyError|Connection error",
    re.IGNORECASE,
)
_SERVICE = re.compile(r"Sandbox not ready after waiting")
_GPU = re.compile(r"No available node types can fulfill resource request \{[^}]*gpu", re.IGNORECASE)  # Ray's words
_PACKAGES = re.compile(r"needs the Python packages ([^;]+?), which")
_MODULE = re.compile(r"No module named '([\w.]+)'")
_KEY = re.compile(  # a server's settings, as pydantic refuses them
    r"^(\w+)\n +(?:Field required|Input should be a valid string .*input_value=None)", re.MULTILINE
)
_SETTING = re.compile(r"Error(?:: |\(['\"])(\w+) is not configured")  # as a server refuses one itself
_PLACED = re.compile(r"No such file or directory: 'placeholder'")  # of `placeholders`
_FOLDER = re.compile(r"/[^\s'\"]*/site-packages/")


@dataclass(frozen=True)
class Outcome:
    """Of one environment.

    Attributes:
        name: its folder.
        config: that was tried; empty where there is none.
        verdict: see VERDICTS.
        image: whose packages it was tried with (`images.IMAGES`).
        beside: config files that go with `config`.
        keys: settings without a value, which got placeholders, or the policy's address where they name a model.
        packages: Python packages that the image lacks.
        rows: example rows that were answered with a reward, and all that were played.
        tools: it offers tools.
        model_calls: of the policy, in all rows.
        note: why it doesn't run.
        date: of the trial, as in ISO 8601.
        others: config files that were not tried.
    """

    name: str
    config: str
    verdict: Verdict
    image: str = "gym"
    beside: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    rows: tuple[int, int] = (0, 0)
    tools: bool = False
    model_calls: int = 0
    note: str = ""
    date: str = ""
    others: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Cause:
    """Why an environment doesn't run.

    Attributes:
        verdict: never "runs".
        packages: that the image lacks.
        keys: settings that it doesn't start without.
    """

    verdict: Verdict
    packages: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


def cause(texts: Iterable[str]) -> Cause:
    """Read from preflight's findings, from errors and from logs of servers: what has to be mended first."""
    said = tuple(texts)
    if packages := missing_packages(said):
        return Cause("needs packages", packages=packages)
    keys = tuple(dict.fromkeys(name for text in said for how in (_KEY, _SETTING) for name in how.findall(text)))
    if keys or any(_PLACED.search(text) for text in said):
        return Cause("needs keys", keys=keys)
    if any(_SERVICE.search(text) for text in said):
        return Cause("needs a service")
    if any(map(wants_network, said)):
        return Cause("needs network")
    if any(_GPU.search(text) for text in said):
        return Cause("needs a GPU")
    return Cause("fails")


def missing_packages(texts: Iterable[str]) -> tuple[str, ...]:
    """Named in preflight's findings, or in the log of a server that could not import them."""
    found: dict[str, None] = {}
    for text in texts:
        for names in _PACKAGES.findall(text):
            found.update(dict.fromkeys(name.strip() for name in names.split(",")))
        found.update(dict.fromkeys(name.partition(".")[0] for name in _MODULE.findall(text)))
    return tuple(found)


def wants_network(text: str) -> bool:
    """Whether an error is that something outside this machine wasn't reached."""
    return _NETWORK.search(text) is not None


def note(text: str) -> str:
    """One short line of an error, without the folders of this trial and of the machine."""
    line = " ".join(_FOLDER.sub("…/", re.sub(r"/tmp/[^\s'\"]*", "/tmp/…", text)).split())
    return line if len(line) <= NOTE_LENGTH else f"{line[: NOTE_LENGTH - 2]} …"
