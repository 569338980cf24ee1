"""What a measured program may say: each line checked before anything is computed from it."""

from __future__ import annotations

import json
from typing import Any

from pamx.bench.check import finite
from pamx.errors import PamxError

_DIGITS = 7  # of seconds, in records: a time that is 0 there is 0 here


class BadAnswerError(PamxError):
    """A line that cannot be; the message continues the program's name."""


def parsed(line: bytes) -> dict[str, Any]:
    """A JSON object with a type, all of whose numbers are finite and whose text is Unicode."""
    try:
        value = json.loads(line, parse_constant=finite, parse_float=finite)
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            if value["type"] != "token":  # its text is not kept
                json.dumps(value, ensure_ascii=False).encode()
            return value
    except (ValueError, RecursionError):
        pass
    shown = line[:200].decode("utf-8", "replace").strip()
    raise BadAnswerError(
        f"wrote {shown!r}, which is no JSON object with a type.",
        "Its standard output is for the protocol alone, in Unicode and finite numbers; print other "
        "things to stderr.",
    )


def token_time(line: dict[str, Any], before: float) -> float:
    """Seconds at which a token came, as records keep them.

    Args:
        before: When the token before it came; for the first one, when the request did.
    """
    at = line["time"]
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at <= 1e9:
        raise BadAnswerError(f"gives a time that is no number of seconds: {_short(line)}.")
    at = round(float(at), _DIGITS)
    if at < before:
        raise BadAnswerError(f"gives times that run backwards: {_short(line)}.")
    if at <= 0:
        raise BadAnswerError(f"gives a token that took no time: {_short(line)}.")
    return at


def told_at_end(line: dict[str, Any]) -> dict[str, Any]:
    """What a "done" carries besides its type and id."""
    for name in ("pages", "pool_bytes", "peak_memory_bytes"):
        if (value := line.get(name)) is not None and not _count(value):
            raise BadAnswerError(
                f"gives {name} that is no whole number, 0 or more: {_short(line)}."
            )
    for name in ("peak_memory_of", "cannot_force"):
        if not isinstance(line.get(name), str | None):
            raise BadAnswerError(f"gives {name} that is no text: {_short(line)}.")
    if not _is_dispatch(line.get("dispatch")):
        raise BadAnswerError(
            f"gives a dispatch that cannot be: {_short(line)}.",
            'It is like {"kernel": "name", "partition": 256, "calls": {"name": 30}}.',
        )
    return {k: v for k, v in line.items() if k not in ("type", "id")}


def _is_dispatch(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or not isinstance(value.get("kernel"), str | None):
        return False
    partition, calls = value.get("partition"), value.get("calls", {})
    return (
        (partition is None or _count(partition))
        and isinstance(calls, dict)
        and all(_count(count) for count in calls.values())
    )


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _short(line: dict[str, Any]) -> str:
    return json.dumps(line)[:200]
