"""The largest steps of attention that are planned, for whoever asks before a call is planned.

native/plan/step_limits.hpp and the kernels refuse larger ones; the tests hold the two against each
other.
"""

from __future__ import annotations

LONGEST_CONTEXT = 1 << 30  # tokens of a sequence
MOST_SEQUENCES = 1 << 12  # answered at a time; each has state in Python, and more would only wait
MOST_QUERY_TOKENS = 1 << 24  # of all sequences of a step
MOST_HEADS = 1 << 16  # query heads of a layer


def against_head(size: int, largest: int) -> str:
    """Why no head has so many elements, as a clause; else ""."""
    if 0 < size <= largest and size % 8 == 0:
        return ""
    return f"a head size is a multiple of 8 up to {largest}"
