"""Where pods are found."""

from gymtrain_trainer.dns import pod_urls


async def test_a_name_without_addresses_is_no_error() -> None:
    assert await pod_urls("no-such-host.invalid", 8000) == []


async def test_addresses_become_urls() -> None:
    assert await pod_urls("127.0.0.1", 8000) == ["http://127.0.0.1:8000"]
    assert await pod_urls("::1", 8000) == ["http://[::1]:8000"]
