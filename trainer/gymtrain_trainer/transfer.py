"""What stands between TRL and the weight transport: one place that numbers, times, notes and interrupts its calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gymtrain_api.weight_version import WeightVersion
from gymtrain_trainer.activity import Activity, Doing
from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.versions import Numbering, SyncNumbers
from gymtrain_trainer.weights import TransportRefusedError

type Stream = Iterator[tuple[str, Any]]  # name and tensor


class Transport(Protocol):
    """TRL's WeightTransferProtocol, with what our transports add."""

    @property
    def current_version(self) -> str | None:
        """Label of the version that vLLM holds."""
        ...

    def init_weight_transfer(self) -> None:
        """Finds the servers."""
        ...

    def pause(self) -> None:
        """Before the weights."""
        ...

    def send_weights(self, iterator: Stream) -> None:
        """Brings the weights to every pod."""
        ...

    def resume(self) -> None:
        """After the weights."""
        ...

    def destroy(self) -> None:
        """Ends it."""
        ...


class WatchedTransfer:
    """The transport as TRL sees it.

    SIGTERM ends its waits: suspending a run takes vLLM away in the middle of a sync. What is left of a sync is left out
    then, without an error: the step is over, its checkpoint is still to be written, and other ranks are in the same
    collectives. Each sync's number is noted before any pod hears of it.
    """

    def __init__(
        self,
        transfer: Transport,
        choice: Callable[[], tuple[str, str]],
        *,
        stop: StopSignal,
        board: ProgressBoard,
        activity: Activity,
        numbering: Numbering,
        numbers: SyncNumbers,
        watch: Callable[[int, Stream], Stream] | None = None,
    ) -> None:
        """
        Args:
            transfer: the transport.
            choice: its name and the reason for it, once it is initialised.
            stop: ends waits.
            board: where the transport and the reason for it go.
            activity: of the main thread.
            numbering: learns the label of each version.
            numbers: where the attempt's numbers are noted.
            watch: sees the stream of each model version on its way.
        """
        self._transfer = transfer
        self._choice = choice
        self._stop = stop
        self._board = board
        self._activity = activity
        self._numbering = numbering
        self._numbers = numbers
        self._watch = watch
        self._version = 0  # TRL's
        self._last_number = numbering.start

    def init_weight_transfer(self) -> None:
        """Settles the transport by what the servers offer, and says so on the board."""
        try:
            with self._waiting():
                self._transfer.init_weight_transfer()
        except TransportRefusedError as error:
            self._board.update(transport_reason=str(error))
            raise
        name, reason = self._choice()
        self._board.update(transport=name, transport_reason=reason)

    def pause(self) -> None:
        """As the transport does."""
        self._call(self._transfer.pause)

    def send_weights(self, iterator: Stream) -> None:
        """Sends one version. The stream is read to its end in any case: with a sharded model each tensor is a
        collective."""
        version = self._version + 1
        self._numbers.reserve(self._last_number)
        stream = self._watch(version, iterator) if self._watch else iterator
        if not self._call(lambda: self._transfer.send_weights(stream)):
            for _ in iterator:
                pass
            return
        sent = WeightVersion.parse(self._transfer.current_version)
        assert sent is not None, "the transport sent weights and names no version"
        self._numbering.sent(str(sent))
        self._version, self._last_number = version, sent.number
        self._board.update(weight_version=str(sent))

    def resume(self) -> None:
        """As the transport does."""
        self._call(self._transfer.resume)

    def destroy(self) -> None:
        """As the transport does."""
        self._transfer.destroy()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._activity.doing(Doing.SYNC), self._stop.waiting():
            yield

    def _call(self, step: Callable[[], None]) -> bool:
        """Takes a step of a sync; False if SIGTERM came before its end."""
        try:
            with self._waiting():
                step()
        except InterruptedBySignal:
            return False
        return True
