"""From tokens to text as it comes: whole characters only, and nothing past a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TextStream:
    """Turns one answer's tokens into pieces of text.

    A piece never ends inside a character, and text that could be the beginning of a stop string
    is held back until it is known not to be one.

    Args:
        detokenizer: mlx-lm's streaming detokenizer, which this stream resets.
        stop: Strings that end the answer as soon as one is complete; they are not part of it.
    """

    def __init__(self, detokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._detokenizer.reset()
        self._stop = [s for s in ((stop,) if isinstance(stop, str) else stop) if s]
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Takes one token; returns the text that is now certain, often a word or nothing."""
        self._detokenizer.add_token(token)
        return self._release(self._detokenizer.last_segment, last=False)

    def finish(self) -> str:
        """Returns what was held back, once no more tokens come."""
        self._detokenizer.finalize()
        return self._release(self._detokenizer.last_segment, last=True)

    def _release(self, segment: str, last: bool) -> str:
        if self.stopped:
            return ""
        self._held += segment
        # The one that is complete first, however the text was cut into tokens.
        found = [(i + len(s), i) for s in self._stop if (i := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            piece, self._held = self._held[: min(found)[1]], ""
        else:
            keep = 0 if last else self._possible_stop()
            cut = len(self._held) - keep
            piece, self._held = self._held[:cut], self._held[cut:]
        self.text += piece
        return piece

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        return max(
            (
                n
                for s in self._stop
                for n in range(1, min(len(s), len(self._held)) + 1)
                if self._held.endswith(s[:n])
            ),
            default=0,
        )
