"""One run of the program: its streams, its last line of defence, its end."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn

from pamx.cli.app import app
from pamx.cli.engine_thread import was_started
from pamx.cli.failures import report
from pamx.cli.terminal import settle_stdout


def run() -> NoReturn:
    """Runs the command in sys.argv and exits with its status."""
    _mend_streams()
    status = _status()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over already
    if error := settle_stdout():
        status = report(error)
    if was_started():
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _status() -> int:
    try:
        app(prog_name="pamx")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return report(error)
    return 0


def _mend_streams() -> None:
    """Replaces streams that the parent closed, and accepts text that stdout cannot encode."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
