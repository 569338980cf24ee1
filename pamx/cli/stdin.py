"""Reading text from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pamx.errors import RequestError


def lines() -> Iterator[str]:
    """The lines of standard input as they come, without their ends.

    Raises:
        RequestError: a line is not valid UTF-8.
    """
    for number, line in enumerate(sys.stdin.buffer, start=1):
        yield _decode(line, number).rstrip("\r\n")


def read() -> str:
    """All of standard input, without the newlines at its end.

    Raises:
        RequestError: it is not valid UTF-8.
    """
    return "".join(
        _decode(line, number) for number, line in enumerate(sys.stdin.buffer, start=1)
    ).rstrip("\r\n")


def _decode(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"Standard input is not valid UTF-8: line {number} has the byte "
            f"0x{line[error.start]:02x} at place {error.start + 1}.",
            "Convert it first, for example: iconv -f LATIN1 -t UTF-8.",
        ) from error
