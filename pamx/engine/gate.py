"""Who may use an engine now: one thread at a time, and nobody once it is closed.

Neither MLX's graph nor a model's caches are made for two threads: used by both at once they give
wrong numbers or end the process. One after the other is fine: what a thread leaves behind has been
queued for evaluation, and others may read such arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from inspect import GEN_CLOSED, getgeneratorstate
from types import TracebackType
from typing import Generic, TypeVar

from pamx.errors import PamxError, RequestError

T = TypeVar("T")


class Gate:
    """A context manager around each use of an engine.

    It never waits: a thread that would have to is refused. The thread that is inside may come in
    again.

    Attributes:
        closed: Set when the engine is closed; from then on only `alone` lets in.
    """

    def __init__(self) -> None:
        self.alone = _Alone()
        self.closed = False

    def check_open(self) -> None:
        """Raises RequestError if the engine is closed."""
        if self.closed:
            raise RequestError("The engine is closed.", "Load the model again with pamx.load.")

    def __enter__(self) -> None:
        self.alone.__enter__()
        try:
            self.check_open()
        except RequestError:
            self.alone.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.alone.__exit__(kind, error, trace)


class _Alone:
    """The part that refuses a second thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise PamxError(
                "Another thread is using this engine, which is for one at a time.",
                "Let one thread run an Engine.batch and submit to it from any, or load an engine "
                "for each thread.",
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


class Gated(Generic[T]):
    """An iterator each of whose steps goes through the gate; threads may take turns at it."""

    def __init__(self, gate: Gate, items: Generator[T, None, None]) -> None:
        self._gate = gate
        self._items = items
        self._broken_off: PamxError | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._gate:
            if self._broken_off is not None:
                raise self._broken_off
            return next(self._items)

    def break_off(self, error: PamxError) -> None:
        """Closes it unless it has ended; whoever goes on iterating gets the error, not an end."""
        with self._gate.alone:
            if getgeneratorstate(self._items) != GEN_CLOSED:
                self._broken_off = error
            self._items.close()

    def close(self) -> None:
        """Ends the work and frees what it holds; the engine may be closed already."""
        with self._gate.alone:
            self._items.close()
