"""Points in time: seconds since the epoch inside, RFC 3339 outside."""

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Such as 2026-11-21T17:00:00.250Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: object) -> float | None:
    """Since the epoch; None where the text is no time."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
