"""Submitting requests at their moments while an engine steps: on time, or as soon as a step ends.

A request counts from the moment at which it was due, not from that at which a busy loop came to
submit it: otherwise a slow engine would be excused from the waiting that it causes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


def drive(
    due: Sequence[float],
    submit: Callable[[int], None],
    busy: Callable[[], bool],
    step: Callable[[], None],
) -> None:
    """Runs until every request is submitted and nothing is left to do.

    Args:
        due: Seconds from now at which each request is due, ascending.
        submit: Puts request i in line.
        busy: Whether there is something to do.
        step: Does a piece of it.
    """
    begin, following = time.perf_counter(), 0
    while following < len(due) or busy():
        while following < len(due) and due[following] <= time.perf_counter() - begin:
            submit(following)
            following += 1
        if busy():
            step()
        elif following < len(due):
            time.sleep(max(0.0, due[following] - (time.perf_counter() - begin)))
