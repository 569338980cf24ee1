"""Whole numbers as options take them: `512`, `1,4,16`, `1-4`, `1024-8192*2`."""

from __future__ import annotations

import re

MOST = 64

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:\*(\d{1,9}))?)?", re.ASCII)


class BadRangeError(ValueError):
    """A text that is no list of numbers; the message is a sentence for its author."""


def whole_numbers(text: str) -> list[int]:
    """The numbers that `text` stands for, each once, in its order.

    `a-b` is every number from a to b; `a-b*k` is a, a*k, a*k*k ... up to b.

    Raises:
        BadRangeError: `text` is something else, has a number below 1, or stands for more than 64.
    """
    numbers: dict[int, None] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise BadRangeError(
                f"{part.strip()!r} is neither a number nor a range such as 1-4 or 1024-8192*2."
            )
        first, last, factor = (None if g is None else int(g) for g in match.groups())
        assert first is not None
        numbers.update(dict.fromkeys(_expand(first, last, factor, part.strip())))
        if len(numbers) > MOST:
            raise BadRangeError(f"it stands for more than {MOST} numbers; a-b*2 takes fewer.")
    return list(numbers)


def _expand(first: int, last: int | None, factor: int | None, part: str) -> list[int]:
    if first < 1:
        raise BadRangeError(f"{part!r} has a number below 1.")
    if last is None:
        return [first]
    if last < first:
        raise BadRangeError(f"{part!r} ends before it begins.")
    if factor is None:
        if last - first >= MOST:
            raise BadRangeError(f"{part!r} stands for more than {MOST} numbers; a-b*2 takes fewer.")
        return list(range(first, last + 1))
    if factor < 2:
        raise BadRangeError(f"{part!r} multiplies by {factor}; it must be at least 2.")
    found = []
    while first <= last:
        found.append(first)
        first *= factor
    return found
