"""Requests over time: read from a trace, or made up from an arrival pattern and lengths."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pamx.errors import RequestError

MOST_REQUESTS = 100_000
MOST_TOKENS = 9_999_999
_LATEST = 1e12  # seconds: a date is a number of seconds too
_LONGEST = 7 * 24 * 3600.0  # seconds from the first to the last
LONGEST_LINE = 16 << 20  # bytes


@dataclass(frozen=True)
class Arrival:
    """One request.

    Attributes:
        at: Seconds after the first moment.
        prompt: Its text, or the number of tokens to make one of.
        output_tokens: Tokens of its answer.
    """

    at: float
    prompt: str | int
    output_tokens: int


class BadPatternError(ValueError):
    """A text that is no arrival pattern or length; the message is a sentence for its author."""


Lengths = Callable[[np.random.Generator], int]
_MOST_RATE = 1e6  # requests a second
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"


def read_trace(lines: Iterable[bytes], name: str) -> list[Arrival]:
    """Requests of a trace, ordered by arrival.

    Raises:
        RequestError: a line is not a request, with its number; or there is none.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_arrival(_parsed(line)))
        except ValueError as error:
            raise RequestError(
                f"{name}, line {number}: {error}.",
                'A line is like {"arrival_s": 0.5, "prompt_tokens": 100, "output_tokens": 20}.',
            ) from error
        if len(found) > MOST_REQUESTS:
            raise RequestError(f"{name} has more than {MOST_REQUESTS:,} requests.")
    if not found:
        raise RequestError(f"{name} has no requests.", "Name a file of JSON lines.")
    first = min(a.at for a in found)
    if (span := max(a.at for a in found) - first) > _LONGEST:
        raise RequestError(
            f"{name} takes {span:,.0f} seconds from its first request to its last.",
            "Give arrival_s in seconds, and replay at most a week.",
        )
    moved = [Arrival(a.at - first, a.prompt, a.output_tokens) for a in found]
    return sorted(moved, key=lambda a: a.at)


def _parsed(line: bytes) -> object:
    """ValueError, in words, for what is no JSON; of numbers, only those that a request may have."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE:,} bytes")
    try:
        return json.loads(line.decode("utf-8-sig"), parse_int=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from error


def _number(digits: str) -> int | float:
    """A whole number; infinite if it has so many digits that Python refuses to read it."""
    return int(digits) if len(digits) < 400 else math.inf


def _arrival(value: object) -> Arrival:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    at = value.get("arrival_s")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at <= _LATEST:
        raise ValueError(f'"arrival_s" is {_shown(at)}; it must be a number of seconds, 0 or more')
    prompt = value.get("prompt")
    if prompt is None:
        prompt = _count(value, "prompt_tokens")
    elif not isinstance(prompt, str) or not prompt.strip():
        raise ValueError('"prompt" must be a text that is not empty')
    return Arrival(float(at), prompt, _count(value, "output_tokens"))


def _count(value: dict[str, object], name: str) -> int:
    count = value.get(name)
    if count == math.inf or (type(count) is int and count > MOST_TOKENS):
        raise ValueError(f'"{name}" is more than {MOST_TOKENS:,}')
    if type(count) is not int or count < 1:
        raise ValueError(f'"{name}" is {_shown(count)}; it must be a whole number, 1 or more')
    return count


def _shown(value: object) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def make_arrivals(
    pattern: str, count: int, prompts: Lengths, answers: Lengths, seed: int
) -> list[Arrival]:
    """Made-up requests; the same ones for the same arguments.

    Args:
        pattern: "poisson:RATE" (requests a second), or "bursts:N@SECONDS": N at once, every so
            often.

    Raises:
        BadPatternError: it is neither, or takes more than a week.
    """
    rng = np.random.default_rng(seed)
    times = _times(pattern, count, rng)
    if not times[-1] <= _LONGEST:
        raise BadPatternError(
            f"{_shown(pattern)} takes more than a week for {count:,} requests: take fewer of them, "
            "or more a second."
        )
    return [Arrival(at, prompts(rng), answers(rng)) for at in times]


def _times(pattern: str, count: int, rng: np.random.Generator) -> list[float]:
    if match := re.fullmatch(rf"poisson:{_NUMBER}", pattern, re.ASCII):
        if 0 < (mean_rate := float(match[1])) <= _MOST_RATE:
            gaps = rng.exponential(1.0, count) / mean_rate
            gaps[0] = 0.0
            return [float(t) for t in np.cumsum(gaps)]
    elif match := re.fullmatch(rf"bursts:(\d{{1,6}})@{_NUMBER}s?", pattern, re.ASCII):
        together, every = int(match[1]), float(match[2])
        if together and every > 0:
            return [i // together * every if i >= together else 0.0 for i in range(count)]
    raise BadPatternError(
        f"{_shown(pattern)} is neither poisson:RATE, such as poisson:2, nor bursts:N@SECONDS, such "
        f"as bursts:8@2, with numbers above 0 and a rate of at most {_MOST_RATE:,.0f} a second."
    )


def lengths(text: str) -> Lengths:
    """Draws token counts: "128", "uniform:a-b" or "lognormal:MEDIAN,SIGMA" (of the logarithm).

    Raises:
        BadPatternError: `text` is none of these.
    """
    if (match := re.fullmatch(r"\d{1,7}", text, re.ASCII)) and int(text):
        return lambda _: int(text)
    if match := re.fullmatch(r"uniform:(\d{1,7})-(\d{1,7})", text, re.ASCII):
        low, high = int(match[1]), int(match[2])
        if 1 <= low <= high:
            return lambda rng: int(rng.integers(low, high + 1))
    if match := re.fullmatch(rf"lognormal:{_NUMBER},{_NUMBER}", text, re.ASCII):
        median, sigma = float(match[1]), float(match[2])
        if 1 <= median <= MOST_TOKENS and sigma <= 3:
            # At most 20 medians: one request out of thousands must not decide the pool's size.
            most = 20 * median
            return lambda rng: max(1, round(min(most, rng.lognormal(math.log(median), sigma))))
    raise BadPatternError(
        f"{_shown(text)} is neither a number of tokens, uniform:a-b, nor lognormal:MEDIAN,SIGMA, "
        f"with at most {MOST_TOKENS:,} tokens and a sigma of at most 3."
    )
