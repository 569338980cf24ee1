"""One-line notices on standard error, for a person who is watching a terminal."""

from __future__ import annotations

import sys

__all__ = ["say", "watched"]


def watched(progress: bool) -> bool:
    """Whether progress is wanted and standard error is a terminal."""
    return progress and sys.stderr.isatty()


def say(text: str, progress: bool) -> None:
    """Print one line if somebody is watching."""
    if watched(progress):
        print(text, file=sys.stderr, flush=True)
