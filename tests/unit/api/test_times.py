"""Times of Kubernetes."""

import pytest

from gymtrain_api.times import to_seconds, to_text, to_text_with_milliseconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T17:00:00Z", 1795280400.0),
        ("2026-11-21T17:00:00.250Z", 1795280400.25),
        ("2026-11-21T18:00:00+01:00", 1795280400.0),
        ("", None),
        ("tomorrow", None),
        (None, None),
    ],
)
def test_a_time_of_kubernetes_in_seconds(text: object, seconds: float | None) -> None:
    assert to_seconds(text) == seconds


def test_kubernetes_times_have_whole_seconds() -> None:
    assert to_text(1795280400.999) == "2026-11-21T17:00:00Z"


def test_times_of_documents_have_milliseconds() -> None:
    assert to_text_with_milliseconds(1795280400.25) == "2026-11-21T17:00:00.250Z"


def test_what_is_written_is_read() -> None:
    assert to_seconds(to_text(1795280400.0)) == to_seconds(to_text_with_milliseconds(1795280400.0)) == 1795280400.0
