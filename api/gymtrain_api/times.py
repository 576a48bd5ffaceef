"""Points in time: seconds since the epoch inside, RFC 3339 in Kubernetes' objects and in our documents."""

from datetime import UTC, datetime


def to_seconds(text: object) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None where there is none, or where the text is no time."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def to_text(seconds: float) -> str:
    """RFC 3339 as Kubernetes writes it: UTC, whole seconds, such as 2026-11-21T17:00:00Z."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_text_with_milliseconds(seconds: float) -> str:
    """RFC 3339 with three digits after the point, such as 2026-11-21T17:00:00.250Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
