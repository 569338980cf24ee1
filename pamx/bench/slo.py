"""Limits that a request must meet to count for goodput: `ttft=200ms,tpot=0.05s`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from pamx.bench.timing import RequestTiming, span

LIMITED = ("ttft", "tpot", "e2e")
_LIMIT = re.compile(r"(\w+)\s*=\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)", re.ASCII)


class BadLimitError(ValueError):
    """A text that is no limit; the message is a sentence for its author."""


def limits(text: str) -> dict[str, float]:
    """Seconds by metric.

    Raises:
        BadLimitError: a part is not METRIC=NUMBER with a unit, ms or s, or a metric comes twice.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None or match[1].lower() not in LIMITED:
            raise BadLimitError(
                f"{part.strip()!r} is not a limit such as ttft=200ms; there are limits for "
                f"{', '.join(LIMITED)}, in ms or s."
            )
        name, seconds = match[1].lower(), float(match[2]) / (1000 if match[3] == "ms" else 1)
        if name in found:
            raise BadLimitError(f"{name} is limited twice.")
        if not math.isfinite(seconds):
            raise BadLimitError(f"{name} has no such limit: {seconds} seconds.")
        if seconds <= 0:
            raise BadLimitError(f"{part.strip()!r} can be met by nothing.")
        found[name] = seconds
    return found


def meets(request: RequestTiming, wanted: Mapping[str, float]) -> bool:
    """Whether all limits are met; a single token has no TPOT and meets any limit of it."""
    figures = {"ttft": request.ttft, "tpot": request.tpot, "e2e": request.e2e}
    return all((figure := figures[name]) is None or figure <= most for name, most in wanted.items())


def goodput(requests: Sequence[RequestTiming], wanted: Mapping[str, float]) -> float:
    """Requests that meet all limits, a second."""
    return sum(meets(request, wanted) for request in requests) / span(requests)
