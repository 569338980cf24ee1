"""Writing: results to stdout, the rest to stderr, and nothing that a model can hijack."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, TextIO

# C0 but newline and tab, DEL and C1: what a terminal may obey instead of showing.
_CONTROLS = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (ord("\n"), ord("\t"))
}


def printable(text: str) -> str:
    """`text` without the control characters that a terminal acts upon."""
    return text.translate(_CONTROLS)


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def styled(stream: TextIO) -> bool:
    """Whether colours and other attributes may go to `stream`."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM", "") in ("", "dumb")


def write(text: str) -> None:
    """Writes a piece of a result to stdout at once; cleaned if that is a terminal."""
    sys.stdout.write(printable(text) if is_terminal(sys.stdout) else text)
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Writes one JSON value to stdout, escaped if stdout's encoding is not a Unicode one."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    write(json.dumps(value, ensure_ascii=not unicode, indent=2) + "\n")


def settle_stdout() -> OSError | None:
    """Writes out what stdout still holds.

    Returns:
        Why that cannot be done, if so; the rest is then dropped, and nothing fails on it again.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # no descriptor: nothing will be flushed
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, sys.stdout.fileno())
            os.close(sink)
        return error
    return None


def say(text: str) -> None:
    """Writes a line to stderr."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def confirmed(question: str) -> bool:
    """Asks on stderr, and reads the answer from stdin: whether it is yes; an end of input is no."""
    sys.stderr.write(f"{printable(question)} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


def note(text: str) -> None:
    """Writes a line to stderr, dimmed where that is possible."""
    text = printable(text)
    sys.stderr.write(f"\x1b[2m{text}\x1b[0m\n" if styled(sys.stderr) else f"{text}\n")
    sys.stderr.flush()
