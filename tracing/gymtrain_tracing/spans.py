"""What the parts know of tracing, without OpenTelemetry."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
"""The variable that says where spans are sent; without it nothing is traced."""

type Value = str | bool | int | float
type Attributes = Mapping[str, Value]


class Span(Protocol):
    """What happens while a block runs."""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        ...

    def fail(self, error: str) -> None:
        """Marks it as failed, though no exception leaves the block."""
        ...

    def answered(self, status: int) -> None:
        """Notes an HTTP status; from 500 on it has failed."""
        ...


class Tracer(Protocol):
    """Makes spans; `gymtrain_tracing` has what each method does."""

    def root(self, name: str, attributes: Attributes | None) -> AbstractContextManager[Span]: ...

    def served(
        self, name: str, headers: Mapping[str, str], attributes: Attributes | None
    ) -> AbstractContextManager[Span]: ...

    def span(self, name: str, attributes: Attributes | None, *, sent: bool = False) -> AbstractContextManager[Span]: ...

    def note(self, attributes: Attributes) -> None: ...

    def headers(self) -> dict[str, str]: ...

    def stop(self, seconds: float) -> None: ...


class _Nothing:
    """A span that isn't recorded. One object for all: it has no state."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def set(self, attributes: Attributes) -> None:
        """Does nothing."""

    def fail(self, error: str) -> None:
        """Does nothing."""

    def answered(self, status: int) -> None:
        """Does nothing."""


NOTHING = _Nothing()


class _Off:
    """Records nothing."""

    def root(self, name: str, attributes: Attributes | None) -> AbstractContextManager[Span]:
        return NOTHING

    def served(
        self, name: str, headers: Mapping[str, str], attributes: Attributes | None
    ) -> AbstractContextManager[Span]:
        return NOTHING

    def span(self, name: str, attributes: Attributes | None, *, sent: bool = False) -> AbstractContextManager[Span]:
        return NOTHING

    def note(self, attributes: Attributes) -> None:
        return

    def headers(self) -> dict[str, str]:
        return {}

    def stop(self, seconds: float) -> None:
        return


OFF: Tracer = _Off()
