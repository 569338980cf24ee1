"""Running the checks of `compute` in a process of their own, which they may kill.

An MLX built for another processor, or a damaged library, ends its process by a signal; the report
has to survive that and say where it happened.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection

from pamx.cli.doctor.row import Row, guarded


def compute_rows() -> Iterator[Row]:
    """Yields the rows of `compute.CHECKS` as they come, then one for the check that died."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sender,), daemon=True)
    child.start()
    sender.close()
    running = "mlx"
    try:
        while True:
            match receiver.recv():
                case Row() as row:
                    yield row
                case str(name):
                    running = name
    except (EOFError, OSError):
        child.join()
    finally:
        child.kill()
    if child.exitcode:
        yield Row(running, "fail", f"The check ended its process: {ending(child.exitcode)}.")


def ending(exitcode: int) -> str:
    """How a process ended, from `Process.exitcode`."""
    if exitcode >= 0:
        return f"exit status {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def _child(sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.dup2(2, 1)  # the parent's stdout is for the report alone
    from pamx.cli.doctor.compute import CHECKS

    for name, check in CHECKS.items():
        sender.send(name)
        sender.send(guarded(name, check))
