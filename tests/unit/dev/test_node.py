"""The development cluster's node."""

import pytest

from dev.cluster.node import resolvers
from dev.settings import NODE_IP


@pytest.mark.parametrize(
    ("machine", "given"),
    [
        ("nameserver 10.0.0.2\nsearch example.com\n", ["nameserver 10.0.0.2"]),
        ("nameserver 127.0.0.53\nnameserver 10.0.0.2\n", ["nameserver 10.0.0.2"]),
        ("nameserver 127.0.0.1\n", [f"nameserver {NODE_IP}"]),
        ("nameserver ::1\n", [f"nameserver {NODE_IP}"]),
        ("", [f"nameserver {NODE_IP}"]),
    ],
)
def test_coredns_never_asks_itself(machine: str, given: list[str]) -> None:
    assert resolvers(machine) == given
