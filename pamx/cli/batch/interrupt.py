"""Ctrl-C as a wish: the step that runs is finished, and what it finished is written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_as_event() -> Iterator[threading.Event]:
    """The event that the first Ctrl-C sets; the second one is an ordinary KeyboardInterrupt.

    Where Ctrl-C is ignored, as in the background of a shell, it stays ignored. Only for the main
    thread.
    """
    wish = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        wish.set()

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, ask)
    try:
        yield wish
    finally:
        signal.signal(signal.SIGINT, before)
