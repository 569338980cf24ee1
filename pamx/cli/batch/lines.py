"""The lines of a batch file as bytes, however long, whatever they hold; and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from pamx.errors import RequestError
from pamx.sizes import bytes_text

LONGEST = 16_000_000  # bytes; more is no prompt, but a file that is not what it was taken for
# Bytes of a line after which no end is waited for: a stray line is passed over within a second, and
# a device or a program that writes for ever is found out in that time too.
ENDLESS = 256_000_000
_RUNS = 10  # of line numbers that a message lists
_BOM = b"\xef\xbb\xbf"


def numbered_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes | None]]:
    """Line numbers from 1 and lines, without the UTF-8 mark at the start and the line ends.

    Blank lines are left out. None stands for a line of more than `LONGEST` bytes; it is skipped
    without being held in memory.

    Args:
        stream: The file.
        name: What to call it.

    Raises:
        RequestError: a line has not ended after `ENDLESS` bytes.
    """
    number = 0
    while line := stream.readline(LONGEST + 2):
        number += 1
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line.rstrip(b"\r\n")) > LONGEST:
            length = len(line)
            while line and not line.endswith(b"\n"):
                if length > ENDLESS:
                    raise RequestError(
                        f"{name}:{number}: this line has more than {bytes_text(ENDLESS)} and no "
                        "end.",
                        f"Name a file with a row a line, each of at most {bytes_text(LONGEST)}.",
                    )
                line = stream.readline(LONGEST)
                length += len(line)
            yield number, None
        elif line.strip():
            yield number, line.rstrip(b"\r\n")


def count_lines(stream: BinaryIO, name: str) -> int:
    """How many lines `numbered_lines` gives."""
    return sum(1 for _ in numbered_lines(stream, name))


def lines_text(numbers: Iterable[int]) -> str:
    """Line numbers for people, neighbours together: "lines 3, 17-20 and 8 more"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown, rest = runs[:_RUNS], sum(len(run) for run in runs[_RUNS:])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in shown]
    noun = "line" if sum(map(len, runs)) == 1 else "lines"
    return f"{noun} {', '.join(parts)}" + (f" and {rest:,} more" if rest else "")
