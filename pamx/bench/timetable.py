"""How the time of a run is shared out among its workloads, and which of them it has no room for.

A workload whose verdict does not fit is left for another run rather than measured without one:
what is measured once, `--resume` does not measure again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from pamx.bench.measure import Cell, verdict_seconds, warm_up_seconds
from pamx.bench.workload import Workload

# Without --time: seconds that every run may take, and the most that one takes if its verdicts need
# them.
UNASKED, MOST_UNASKED = 120.0, 600.0
# Tokens of prompts that take about as long to read as a step of an answer takes, and as each of its
# sequences adds.
_STEP, _SEQUENCE = 6, 2
# Tokens before one, behind which it takes about twice as long to read as the first one.
_TWICE = 2048
# A machine is never as quick throughout as in its best moment.
_SPARE = 1.2
# Three rounds are the fewest for a verdict, and twice as many often what it takes to tell.
_GENEROUS = 2.0


def work(workload: Workload) -> float:
    """About how much there is to do, in first tokens of prompts."""
    slower = 1 + workload.prompt_tokens / 2 / _TWICE
    step = _STEP + _SEQUENCE * workload.batch
    return workload.prompt_tokens * slower * workload.batch + step * workload.output_tokens


def in_words(seconds: float) -> str:
    """A rough duration: 45 s, 5 minutes, 3 h 20 min."""
    if seconds < 99.5:
        return f"{max(1, math.ceil(seconds))} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 100:
        return f"{minutes} minutes"
    return f"{minutes // 60} h {minutes % 60} min"


def in_seconds(seconds: float) -> str:
    """A rough duration in the unit of --time: 45 s, or 950 s (16 minutes)."""
    words = in_words(seconds)
    return words if words.endswith(" s") else f"{_tens(seconds)} s ({words})"


def _tens(seconds: float) -> int:
    return math.ceil(seconds / 10) * 10


class Timetable:
    """Verdicts for as many workloads as possible; what is left over is shared out by work.

    Args:
        seconds: For all, from now; None: twice what the verdicts need, within UNASKED and
            MOST_UNASKED.
        left: Work of each workload that is to be measured, by its id.
        tell: Told how long it will take, once that is known.
        clock: Tells the time.
    """

    def __init__(
        self,
        seconds: float | None,
        left: Mapping[str, float],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin, self._clock, self._tell = clock(), clock, tell
        self._given = seconds
        self._end: float | None = None if seconds is None else self._begin + seconds
        self._left = dict(left)
        self._pace: float | None = None  # seconds for warm-up and a verdict, by work
        self._promised: list[str] = []
        self.without: list[str] = []

    def admits(self, workload: Workload) -> bool:
        """Whether this workload is measured now; if not, it is added to `without`.

        The first one is measured whatever the time: nobody knows yet how long it takes.
        """
        if self._pace is None:
            return True
        self._extend(0.0)
        rest = self._rest()
        if workload.id in self._with_verdict(rest):
            return True
        if workload.id in self._promised:
            needs = in_words(self._needs(workload.id))
            self._tell(
                f"{workload.id}: all takes longer than it seemed at first. A verdict needs about "
                f"{needs} and {in_words(rest)} are left: it is left to --resume."
            )
        del self._left[workload.id]
        self.without.append(workload.id)
        return False

    def share(self, workload: Workload, cells: Sequence[Cell]) -> float:
        """Seconds for the rounds of a workload whose arms have been warmed up."""
        mine, first = verdict_seconds(cells), self._pace is None
        warm = warm_up_seconds(cells)
        amount = self._left.pop(workload.id)
        if mine:  # else no arm can run it, which says nothing of the others
            self._pace = (warm + mine) / amount
        if self._pace is None:
            return 0.0
        self._extend(mine)
        if first:
            self._plan(workload, mine)
        rest = self._rest()
        others = self._with_verdict(rest - mine)
        kept = _SPARE * sum(self._needs(name) for name in others)
        spare = max(0.0, rest - mine - kept)
        whole = amount + sum(self._left[name] for name in others)
        return min(rest, mine + spare * amount / whole)

    def words(self) -> str:
        """How long the run goes on, for a progress line; "" if that is unknown yet."""
        return "" if self._end is None else f"up to {in_words(self._rest())} left; "

    def _rest(self) -> float:
        assert self._end is not None
        return max(0.0, self._end - self._clock())

    def _needs(self, name: str) -> float:
        return (self._pace or 0.0) * self._left[name]

    def _with_verdict(self, seconds: float) -> list[str]:
        """Which of those that are left get a verdict in so many seconds: the quick ones."""
        found = []
        for name in sorted(self._left, key=self._needs):
            seconds -= self._needs(name)
            if seconds < 0:
                break
            found.append(name)
        return found

    def _extend(self, mine: float) -> None:
        """Sets an end if nobody did: later, if what is left turns out to need it."""
        if self._given is not None:
            return
        left = mine + sum(self._needs(name) for name in self._left)
        wanted = self._clock() - self._begin + _GENEROUS * left
        end = self._begin + min(MOST_UNASKED, max(UNASKED, wanted))
        self._end = end if self._end is None else max(self._end, end)

    def _plan(self, first: Workload, mine: float) -> None:
        """Says what verdicts need, and what can be had until the end."""
        gone = self._clock() - self._begin
        needed = gone + mine + sum(self._needs(name) for name in self._left)
        rest = self._rest()
        names = [first.id, *self._left]
        what = f"all {len(names)} workloads" if len(names) > 1 else first.id
        needs = f"A verdict for {what} needs about {in_seconds(needed)}"
        if gone + rest >= needed:
            self._promised = names
            if gone + rest > UNASKED:
                self._tell(f"{needs}; this run goes on for up to {in_seconds(gone + rest)}.")
            return
        having = [first.id, *self._with_verdict(rest - mine)] if rest >= mine else []
        self._promised = having
        limit = (
            f"a run without --time ends after {in_seconds(MOST_UNASKED)}"
            if self._given is None
            else f"--time is {self._given:g} s"
        )
        if having:
            quick = ", ".join(name for name in names if name in having)
            enough = f"which is enough for {quick}, and the rest is left to --resume"
        else:
            enough = f"which is not enough for one: {first.id} alone is measured, without a verdict"
        wanted = _tens(_SPARE * needed)
        self._tell(
            f"{needs}; {limit}, {enough}. --time {wanted} would do, which is {_SPARE - 1:.0%} more "
            "as a reserve."
        )
