"""Whole numbers on their way to C: what does not fit its field is refused, never cut off."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate


def int32(name: str, value: object) -> int:
    """`value` as an int that fits an int32_t; raises as `whole`."""
    return whole(name, value, 32)


def whole(name: str, value: object, bits: int) -> int:
    """`value` as an int that fits a signed field of so many bits.

    Raises:
        ValueError: it is no whole number, or too large; the message begins with `name`.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}.") from None
    largest = 2 ** (bits - 1) - 1
    if not -largest <= number <= largest:
        raise ValueError(f"{name} must be from {-largest} to {largest}, not {number}.")
    return number


def step_lengths(
    query_lens: Sequence[object], context_lens: Sequence[object]
) -> tuple[list[int], list[int]]:
    """Where each sequence's query tokens begin, with the end of all of them, and the contexts.

    Raises:
        ValueError: they differ in number, or one or the sum of `query_lens` is no int32.
    """
    if len(query_lens) != len(context_lens):
        raise ValueError(f"{len(query_lens)} query_lens and {len(context_lens)} context_lens")
    queries = [int32(f"query_lens[{i}]", n) for i, n in enumerate(query_lens)]
    contexts = [int32(f"context_lens[{i}]", n) for i, n in enumerate(context_lens)]
    starts = [int32("The sum of query_lens", n) for n in accumulate(queries, initial=0)]
    return starts, contexts
