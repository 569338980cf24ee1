"""What happened on the machine beside a measurement, noted in its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pamx.bench.conditions import condition_warnings, conditions, cpu_times, used_by_others
from pamx.bench.record import Record


@contextmanager
def noted(record: Record, what: str, pids: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Notes conditions and warnings around a measurement that ends well.

    Args:
        record: Where.
        what: Names the measurement.
        pids: The measured processes, whose CPU time is not others'.
    """
    before, clocks = conditions(), cpu_times(pids())
    yield
    after, others = conditions(), used_by_others(clocks, cpu_times(pids()))
    record["warnings"] += condition_warnings(before, after, others, what)
    record["conditions"].append(
        {
            "workload": what,
            "before": before,
            "after": after,
            "used_by_others": round(others, 4),
        }
    )
