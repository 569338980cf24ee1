"""Running what may end its process in a process of its own.

An MLX built for another processor, or a damaged library, ends its process by a signal; the report
has to survive that and say where it happened.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING

from pamx.cli.doctor.row import Row, guarded
from pamx.errors import ModelError, PamxError

if TYPE_CHECKING:
    from pamx.cli.doctor.fit import Fit, Question

_PATIENCE = 30.0  # seconds for one check: a machine may be busy, a hung driver is not


def compute_rows(names: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of these of `compute.CHECKS` as they come.

    The check that ends its process has failed, and those after it are not run.
    """
    if not names:
        return
    child, receiver = _start(_run_checks, list(names))
    left, running, late = list(names), names[0], False
    deadline = time.monotonic() + _PATIENCE
    try:
        while left:
            if not receiver.poll(max(0.0, deadline - time.monotonic())):
                late = True
                break
            match receiver.recv():
                case Row() as row:
                    left.remove(row.id)
                    deadline = time.monotonic() + _PATIENCE
                    yield row
                case str(name):
                    running = name
    except (EOFError, OSError):
        child.join()
    finally:
        child.kill()
    for name in left:
        if name == running:
            how = f"did not end within {_PATIENCE:.0f} s" if late else "ended its process"
            end = "" if late or child.exitcode is None else f": {ending(child.exitcode)}"
            yield Row(name, "fail", f"The check {how}{end}.", fix=_FIX)
        else:
            yield Row(name, "skip", f"Not run: the check {running} failed first.")


_LOAD = (
    "If memory is limited (`ulimit -v`), allow more; `pamx doctor` says what else is wrong here."
)
_FIX = (
    "Install pamx and the MLX that it brings again; PAMX_DISABLE_NATIVE=1 does without pamx's own "
    "library."
)


def fit_in_child(question: Question) -> Fit:
    """`fit_answer.answer` in a process whose memory is that of a model's and no more.

    Raises:
        ModelError: as `fit_answer.answer`, or the process ended.
        RequestError: as `fit_answer.answer`.
    """
    child, receiver = _start(_run_fit, question)
    try:
        found = receiver.recv()
    except (EOFError, OSError):
        child.join()
        how = ending(child.exitcode or 0)
        raise ModelError(
            f"Reading the model ended the process that did it: {how}.",
            "`pamx doctor` says whether MLX works here.",
        ) from None
    finally:
        child.kill()
    if isinstance(found, tuple):
        kind, message, hint = found
        raise kind(message, hint)
    answer: Fit = found
    return answer


def ending(exitcode: int) -> str:
    """How a process ended, from `Process.exitcode`."""
    if exitcode >= 0:
        return f"exit status {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def _start(target: object, argument: object) -> tuple[SpawnProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sender, target, argument), daemon=True)
    child.start()
    sender.close()
    return child, receiver


def _child(sender: Connection, target: object, argument: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.dup2(2, 1)  # the parent's stdout is for the report alone
    assert callable(target)
    try:
        target(sender, argument)
    except Exception:  # the parent sees that it ended, and says so
        sys.exit(1)


def _run_checks(sender: Connection, names: list[str]) -> None:
    from pamx.cli.doctor.compute import CHECKS

    for name in names:
        sender.send(name)
        sender.send(guarded(name, CHECKS[name]))


def _run_fit(sender: Connection, question: Question) -> None:
    try:
        from pamx.cli.doctor.fit_answer import answer

        sender.send(answer(question))
    except PamxError as error:
        sender.send((type(error), error.message, error.hint))
    except (ImportError, MemoryError) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": .")
        sender.send((ModelError, f"The libraries that a model needs do not load: {what}.", _LOAD))
    except OSError as error:
        from pamx.cli.failures import explain

        sender.send((ModelError, *explain(error)))
    except Exception as error:
        what = f"{type(error).__name__}: {error}".rstrip(": .")
        sender.send((ModelError, f"The model cannot be looked at: {what}.", ""))
