"""Rows read ahead by a thread, so that a slow pipe never keeps the engine from its work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Generic, TypeVar

T = TypeVar("T")

_AHEAD = 64  # items


class Feed(Generic[T]):
    """Reads `source` in the background, a bounded number of items ahead."""

    def __init__(self, source: Iterator[T]) -> None:
        self._queue: Queue[T | _End] = Queue(_AHEAD)
        self._end: _End | None = None
        threading.Thread(target=self._read, args=(source,), name="pamx-batch", daemon=True).start()

    @property
    def exhausted(self) -> bool:
        """Whether the last item has been taken."""
        return self._end is not None

    def take(self, patience: float | None) -> T | None:
        """The next item; None at the end, or if none came within `patience` seconds.

        Raises:
            Exception: what reading the source raised, in the place where it was raised.
        """
        if self._end is not None:
            return None
        try:
            item = self._queue.get(timeout=patience) if patience else self._queue.get_nowait()
        except Empty:
            return None
        if isinstance(item, _End):
            self._end = item
            if item.error is not None:
                raise item.error
            return None
        return item

    def _read(self, source: Iterator[T]) -> None:
        end = _End()
        try:
            for item in source:
                self._queue.put(item)
        except Exception as error:
            end.error = error
        self._queue.put(end)


class _End:
    """Follows the last item."""

    error: Exception | None = None
