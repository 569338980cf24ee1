"""The three standard streams, whatever the parent left of them.

A stream that the parent closed is opened on the null device at its own number, so that no file of
the model takes that number and is written to. Results that cannot be written are an error; messages
that cannot be written are not: they never decide how a command ends.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def mend_streams() -> None:
    """Makes sys.stdin, sys.stdout and sys.stderr usable; call before anything opens a file."""
    for number in (0, 1, 2):
        _fill(number)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stdout is None:
        # Not open for writing: the first result that is written says so.
        unwritable = os.open(os.devnull, os.O_RDONLY)
        sys.stdout = open(unwritable, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):
            # PYTHONUNBUFFERED: what the system takes only a part of would be lost without a word.
            encoding = sys.stdout.encoding
            sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(errors="replace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = io.TextIOWrapper(
            _Messages(sys.stderr.fileno()),
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            write_through=True,
        )


def _fill(number: int) -> None:
    """Opens the null device at this descriptor if it is closed; the lower ones are open."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)


class _Messages(io.RawIOBase):
    """A descriptor for messages: what cannot be written is dropped."""

    name = "<stderr>"
    mode = "w"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        count = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # full, nobody reads it, a terminal that is gone
            pass
        return count
