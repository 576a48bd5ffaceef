"""Times: seconds since the epoch inside, RFC 3339 in Kubernetes."""

from datetime import UTC, datetime


def to_seconds(text: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None where there is none."""
    return datetime.fromisoformat(text).timestamp() if text else None


def to_text(seconds: float) -> str:
    """RFC 3339 as Kubernetes writes it: UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
