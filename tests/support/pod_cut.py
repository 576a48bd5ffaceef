"""A network between two pods of this machine's cluster that is cut, with the kernel's own hands."""

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_TABLE = "gymtrain_chaos"


@contextmanager
def cut_between(some: Iterable[str], others: Iterable[str]) -> Iterator[None]:
    """Drops every packet between these addresses, in both directions, up to the end of the block.

    What is behind a Service is cut as well: by then its packets have a pod's address.
    """
    one, other = ", ".join(some), ", ".join(others)
    _nft(
        f"table ip {_TABLE} {{\n"
        "  chain cut {\n"
        "    type filter hook forward priority -10;\n"
        f"    ip saddr {{ {one} }} ip daddr {{ {other} }} drop\n"
        f"    ip saddr {{ {other} }} ip daddr {{ {one} }} drop\n"
        "  }\n"
        "}\n"
    )
    try:
        yield
    finally:
        heal()


def heal() -> None:
    """Takes the rules away, those of a process that was killed too."""
    subprocess.run(["nft", "delete", "table", "ip", _TABLE], capture_output=True, timeout=60, check=False)


def _nft(rules: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, capture_output=True, timeout=60, check=True)
