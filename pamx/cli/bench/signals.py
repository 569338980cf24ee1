"""SIGTERM and SIGHUP while something is measured end it as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class EndedError(KeyboardInterrupt):
    """A signal asks this process to end.

    Attributes:
        status: The exit status that a shell has for it.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


@contextmanager
def ending_signals() -> Iterator[None]:
    """Meanwhile the first of them raises EndedError; the second has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        raise EndedError(number)

    # What is ignored, as after nohup, stays ignored.
    before = {s: h for s in _ENDING if (h := signal.getsignal(s)) is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
