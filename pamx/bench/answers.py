"""What a measured program may say: each line checked before anything is computed from it."""

from __future__ import annotations

import json
from typing import Any

from pamx.bench.check import finite
from pamx.errors import PamxError

_SHOWN = 200  # characters of an answer that a message repeats
_DIGITS = 7  # of seconds, in records: a time that is 0 there is 0 here


class BadAnswerError(PamxError):
    """A line that cannot be; the message continues the program's name."""


def parsed(line: bytes) -> dict[str, Any]:
    """A JSON object with a type, of finite numbers, whole ones of 64 bits, and Unicode text."""
    try:
        value = json.loads(line, parse_constant=finite, parse_float=finite, parse_int=_whole)
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            if value["type"] != "token":  # its text is not kept
                json.dumps(value, ensure_ascii=False).encode()
            return value
    except _TooLargeError as error:
        raise BadAnswerError(f"{error}: {_shown(line)}.") from error
    except (ValueError, RecursionError):
        pass
    raise BadAnswerError(
        f"wrote {_shown(line)}, which is no JSON object with a type.",
        "Its standard output is for the protocol alone, in Unicode and finite numbers; print other "
        "things to stderr.",
    )


class _TooLargeError(Exception):
    """A whole number that no 64 bits hold, in an answer."""


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -1 << 63 <= (value := int(digits)) < 1 << 63:
        raise _TooLargeError(f"gives a number of {len(digits.lstrip('-')):,} digits")
    return value


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN].decode("utf-8", "replace").strip()) + "..." * (len(line) > _SHOWN)


def token_id(line: dict[str, Any]) -> int | None:
    """The token, if it is told."""
    token = line.get("token")
    if token is not None and not _count(token):
        raise BadAnswerError(
            f"gives a token that is no whole number, 0 or more: {_short(line)}.",
            "A program with another tokenizer leaves `token` out.",
        )
    return token


def token_time(line: dict[str, Any], before: float, *, first: bool) -> float:
    """Seconds at which a token came, as records keep them.

    Args:
        before: When the token before it came; for the first one, when the request did.
        first: Whether it is the first one.
    """
    at = line["time"]
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at <= 1e9:
        raise BadAnswerError(f"gives a time that is no number of seconds: {_short(line)}.")
    at = round(float(at), _DIGITS)
    if first and at < before:
        raise BadAnswerError(f"gives a token before its request was submitted: {_short(line)}.")
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
        if not _is_text(line.get(name)):
            raise BadAnswerError(f"gives {name} that is no short text: {_short(line)}.")
    if not _is_dispatch(line.get("dispatch")):
        raise BadAnswerError(
            f"gives a dispatch that cannot be: {_short(line)}.",
            'It is like {"kernel": "name", "partition": 256, "calls": {"name": 30}}.',
        )
    return {k: v for k, v in line.items() if k not in ("type", "id")}


def _is_dispatch(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or not _is_text(value.get("kernel")):
        return False
    partition, calls = value.get("partition"), value.get("calls", {})
    return (
        (partition is None or _count(partition))
        and isinstance(calls, dict)
        and all(_count(count) for count in calls.values())
    )


def _is_text(value: Any) -> bool:
    """Whether it is absent, or fits into a line of a report."""
    return value is None or (
        isinstance(value, str) and len(value) <= _SHOWN and value.isprintable()
    )


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _short(line: dict[str, Any]) -> str:
    return json.dumps(line)[:_SHOWN]
