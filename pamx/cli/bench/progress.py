"""One line on stderr that says what is measured now; none in a pipe."""

from __future__ import annotations

import sys
import time

from pamx.cli.terminal import is_terminal, note, printable


class Progress:
    """Overwrites its line between samples: nothing refreshes while something is measured."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._shown = not quiet and is_terminal(sys.stderr)
        self._begin = time.monotonic()

    def __call__(self, text: str) -> None:
        if self._shown:
            line = printable(f"[{time.monotonic() - self._begin:5.0f} s] {text}")[:78]
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def tell(self, text: str) -> None:
        """A line that stays, in a pipe too."""
        if not self._quiet:
            self.clear()
            note(text)
