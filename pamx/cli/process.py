"""One run of the program: its streams, its last line of defence, its end."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from pamx.cli.app import app
from pamx.cli.engine_thread import was_started
from pamx.cli.failures import report
from pamx.cli.streams import mend_streams
from pamx.cli.terminal import settle_stdout


def run() -> NoReturn:
    """Runs the command in sys.argv and exits with its status."""
    mend_streams()
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
