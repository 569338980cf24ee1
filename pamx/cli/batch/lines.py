"""The lines of a batch file as bytes, however long, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

LONGEST = 16 * 2**20  # bytes; more is no prompt, but a file that is not what it was taken for
_BOM = b"\xef\xbb\xbf"


def numbered_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Line numbers from 1 and lines, without the UTF-8 mark at the start and the line ends.

    Blank lines are left out. None stands for a line of more than `LONGEST` bytes; it is skipped
    without being held in memory.
    """
    number = 0
    while line := stream.readline(LONGEST + 2):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line.rstrip(b"\r\n")) > LONGEST:
            while line and not line.endswith(b"\n"):
                line = stream.readline(LONGEST)
            yield number, None
        elif line.strip():
            yield number, line.rstrip(b"\r\n")


def count_lines(stream: BinaryIO) -> int:
    """How many lines `numbered_lines` gives."""
    return sum(1 for _ in numbered_lines(stream))
