from dataclasses import replace

import pytest

from dev.cluster.up import up
from dev.report import DevError
from dev.settings import Settings


def test_a_cluster_with_another_containerd_is_left_alone(settings: Settings) -> None:
    settings.state.mkdir(parents=True)
    (settings.state / "complete").touch()
    with pytest.raises(DevError, match="Debian's containerd") as raised:
        up(replace(settings, wants_containerd_2=True))
    assert "cluster-down" in raised.value.fix
