"""How far a batch is, on stderr: one line that is rewritten on a terminal, else one now and then.

Rates are averages since the first row was taken up.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

from pamx.cli.batch.durations import duration_text
from pamx.cli.batch.serve import Tick
from pamx.cli.terminal import is_terminal, printable, say
from pamx.sizes import counted

_TERMINAL, _PIPE = 0.2, 30.0  # seconds between lines
_ERASE = "\r\x1b[K"


class Progress:
    """Counts rows and shows them.

    Args:
        total: Rows in the file, or None if that cannot be known.
        quiet: Show nothing but what `say` is given.
        answers: To a row that does not say how many.
        clock: Seconds.

    Attributes:
        done: Rows that were answered.
        failed: Rows that could not be answered.
        bad: Lines that are no request.
    """

    def __init__(
        self,
        total: int | None,
        *,
        quiet: bool,
        answers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._quiet = quiet
        self._answers = answers
        self._clock = clock
        self._rewrite = is_terminal(sys.stderr) and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = False
        self.done = self.failed = self.bad = 0
        self._tick = Tick(0, 0, 0, 0)
        self.restart()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return self._clock() - self._start

    @property
    def unfinished(self) -> int | None:
        """Rows of the file that are not over, or None if that cannot be known."""
        if self._total is None:
            return None
        return max(self._total - self._over, 0)

    @property
    def _over(self) -> int:
        return self.done + self.failed + self.bad

    def restart(self) -> None:
        """Time counts from now on: the model is loaded."""
        self._start = self._last = self._clock()

    def show(self, tick: Tick) -> None:
        """Shows progress if it is time to."""
        self._tick = tick
        now = self._clock()
        if self._quiet or now - self._last < (_TERMINAL if self._rewrite else _PIPE):
            return
        self._last = now
        if self._rewrite:
            width = shutil.get_terminal_size().columns
            sys.stderr.write(_ERASE + self.line()[: max(width - 1, 1)])
            sys.stderr.flush()
            self._shown = True
        else:
            say(self.line())

    def say(self, text: str) -> None:
        """Writes a line of its own."""
        self.clear()
        say(text)

    def clear(self) -> None:
        """Takes the progress off the terminal."""
        if self._shown:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
            self._shown = False

    def line(self) -> str:
        """Rows, and answers where a row has several; rates and remaining time."""
        over = self._over
        seconds = self.seconds
        parts = [_of(over, self._total, "row")]
        parts += [f"{count:,} {word}" for count, word in self._trouble() if count]
        finished, unfinished, unit = over, self.unfinished, "rows"
        if self._tick.wanted > self._tick.rows:  # rows with several answers, which take long
            finished, unit = self._tick.answers, "answers"
            total = None if unfinished is None else self._tick.wanted + self._answers_to_come
            unfinished = None if total is None else total - finished
            parts.append(_of(finished, total, "answer"))
        if seconds > 0:
            parts.append(f"{self._tick.tokens / seconds:,.1f} tokens/s")
            parts.append(f"{finished / seconds * 60:,.1f} {unit}/min")
        if unfinished is not None and finished and seconds > 0:
            parts.append(f"{duration_text(unfinished * seconds / finished)} left")
        return printable(", ".join(parts))

    @property
    def _answers_to_come(self) -> int:
        """Answers of rows that have not been taken up, if these say nothing else."""
        return max((self._total or 0) - self._tick.rows - self.bad, 0) * self._answers

    def _trouble(self) -> list[tuple[int, str]]:
        return [(self.failed, "failed"), (self.bad, "bad")]


def _of(count: int, total: int | None, noun: str) -> str:
    return counted(count, noun) if total is None else f"{count:,} of {counted(total, noun)}"
