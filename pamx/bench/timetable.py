"""How the time of a run is shared out among its workloads, and which of them it has no room for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pamx.bench.workload import Workload

# Tokens of prompts that take about as long to read as a step of an answer takes.
_STEP = 16


def work(workload: Workload) -> float:
    """About how much there is to do, in tokens of prompts."""
    return workload.prompt_tokens * workload.batch + _STEP * workload.output_tokens


class Timetable:
    """Shares follow the work, so that about as many blocks of each workload fit.

    Args:
        seconds: For all.
        left: Work of each workload, by its id.
        clock: Tells the time.
    """

    def __init__(
        self, seconds: float, left: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._end, self._clock = clock() + seconds, clock
        self._work = dict(left)
        self._left = dict(left)
        self._pace: float | None = None  # seconds for the least that can be measured, by work
        self.without: list[str] = []

    def share(self, workload: Workload) -> float | None:
        """Seconds for this workload, which is measured now; None if too few are left.

        Only the first one is measured whatever the time: nobody knows yet how long it takes. Those
        that get none are added to `without`.
        """
        rest = max(0.0, self._end - self._clock())
        whole = sum(self._left.values())
        mine = self._left.pop(workload.id)
        if self._pace is not None and rest < self._pace * mine:
            self.without.append(workload.id)
            return None
        return rest * mine / whole

    def measured(self, workload: Workload, least: float) -> None:
        """Notes that warming up all arms and one sample of each took so many seconds."""
        self._pace = least / self._work[workload.id]
