"""What a caller may have passed instead of what was meant, told in one sentence."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from numbers import Real

from pamx.errors import RequestError


def whole(name: str, value: object, allowed: str, least: int, most: float = math.inf) -> int:
    """`value` as an int: one of any kind, numpy's included, but no bool.

    Raises:
        RequestError: it is something else, or out of range; `allowed` is what must be.
    """
    number = _index(value)
    if number is None:
        raise RequestError(f"{name} is {value!r}; it must be a whole number.")
    if not least <= number <= most:
        raise RequestError(f"{name} is {number}; it must be {allowed}.")
    return number


def real(name: str, value: object, allowed: str, least: float, most: float = math.inf) -> float:
    """`value` as a finite float.

    Raises:
        RequestError: it is something else, or out of range; `allowed` is what must be.
    """
    number = as_float(value)
    if number is None:
        raise RequestError(f"{name} is {value!r}; it must be a number.")
    if not (math.isfinite(number) and least <= number <= most):
        raise RequestError(f"{name} is {value}; it must be {allowed}.")
    return number


def as_float(value: object) -> float | None:
    """A number of any kind as a float, infinite if too large for one; None: it is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf  # whatever its sign: in no range


def token_ids(name: str, values: object) -> list[int]:
    """`values` as a list of ints.

    Raises:
        RequestError: they are something else.
    """
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        raise RequestError(
            f"{name} must be token ids, not {type(values).__name__}.",
            "Engine.tokens makes them from text.",
        )
    ids = []
    for value in values:
        index = _index(value)
        if index is None:
            raise RequestError(f"{name} must be whole numbers, ids of tokens; one is {value!r}.")
        ids.append(index)
    return ids


def known_ids(ids: Iterable[int], vocabulary: int | None, of: str = "") -> None:
    """Raises RequestError for the first id that is not in a vocabulary of this size."""
    wrong = next((t for t in ids if t < 0 or (vocabulary is not None and t >= vocabulary)), None)
    if wrong is not None:
        size = "" if vocabulary is None else f" of {vocabulary} tokens"
        raise RequestError(f"Token id {wrong}{of} is not in the model's vocabulary{size}.")


def stop_strings(values: object) -> tuple[str, ...]:
    """`values`, one string or several, as a tuple.

    Raises:
        RequestError: they are something else.
    """
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
        raise RequestError(f"stop is {values!r}; it must be strings.")
    return tuple(values)


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
