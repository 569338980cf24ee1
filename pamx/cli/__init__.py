"""The command line, `pamx`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs one command and ends the process: the entry point of the `pamx` script."""
    try:
        from pamx.cli import process

        process.run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
