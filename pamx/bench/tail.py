"""The end of what a program writes to its standard error, however much that is."""

from __future__ import annotations

import threading
from typing import IO

_KEPT = 64 << 10  # bytes
_PATIENCE = 1.0  # seconds for the last words of a program that has ended


class Tail:
    """Reads a pipe to its end on a thread of its own, and keeps the last 64 KiB.

    Args:
        pipe: Closed when it ends.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._kept = pipe, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """What was written, if the program has ended; else what is there after a second."""
        self._thread.join(_PATIENCE)
        return self._kept.decode("utf-8", "replace").strip()

    def _read(self) -> None:
        with self._pipe:
            while some := self._pipe.read(1 << 16):
                self._kept = (self._kept + some)[-_KEPT:]
