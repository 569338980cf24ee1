"""The fields by which a row sets its own options, and the types that they must have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pamx.cli.batch.row import Options

MOST_ANSWERS = 128  # as in the OpenAI API


class BadFieldError(ValueError):
    """A field that a request cannot have; the message is a sentence without its full stop."""


def options_of(fields: Mapping[str, Any], defaults: Options) -> Options:
    """`defaults` with the options that `fields` sets; a null sets nothing.

    Raises:
        BadFieldError: a field has the wrong type.
    """
    own: dict[str, Any] = {}
    for name, (option, read) in OPTIONS.items():
        value = fields.get(name)
        if value is None:
            continue
        try:
            own[option] = read(value)
        except _Unfit as unfit:
            raise BadFieldError(f'"{name}" is {shown(value)}; it must be {unfit}') from None
    if own.get("logprobs") is not None and fields.get("top_logprobs") is not None:
        own["logprobs"] = integer("top_logprobs", fields["top_logprobs"])
    return replace(defaults, **own)


def whole(value: Any, least: int | None = None, most: int | None = None) -> int:
    """`value` if it is a whole number in this range; a boolean is none."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise _Unfit("a whole number")
    if least is not None and value < least:
        raise _Unfit(f"{least} or more")
    if most is not None and value > most:
        raise _Unfit(f"at most {most}")
    return value


def integer(name: str, value: Any) -> int:
    """`value` of the field `name`, which must be a whole number."""
    try:
        return whole(value)
    except _Unfit as unfit:
        raise BadFieldError(f'"{name}" is {shown(value)}; it must be {unfit}') from None


def shown(value: Any) -> str:
    """`value` as it may stand in a message."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


class _Unfit(Exception):  # noqa: N818
    """What a value should have been."""


def _number(value: Any) -> float:
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number past every float
        pass
    raise _Unfit("a finite number")


def _texts(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _Unfit("a text or a list of texts")
    return tuple(text for text in texts if text)


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise _Unfit("a list of token ids")
    return tuple(value)


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise _Unfit("an object of token ids and numbers")
    try:
        return {int(token): _number(bias) for token, bias in value.items()}
    except (ValueError, _Unfit):
        raise _Unfit("an object of token ids and numbers") from None


def _count(value: Any) -> int:
    return whole(value, least=1)


def _logprobs(value: Any) -> int | None:
    """How many: chat completions have a boolean with "top_logprobs" beside it."""
    if isinstance(value, bool):
        return 0 if value else None
    return whole(value, least=0)


# Field of a row, or of the body of an OpenAI row: option, reader. Ranges of sampling are checked
# by `pamx.engine.Sampling` itself.
OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max_tokens": ("max_tokens", _count),
    "max_completion_tokens": ("max_tokens", _count),
    "min_tokens": ("min_tokens", lambda value: whole(value, least=0)),
    "n": ("n", lambda value: whole(value, least=1, most=MOST_ANSWERS)),
    "stop": ("stop", _texts),
    "stop_token_ids": ("stop_token_ids", _token_ids),
    "temperature": ("temperature", _number),
    "top_p": ("top_p", _number),
    "top_k": ("top_k", whole),
    "min_p": ("min_p", _number),
    "seed": ("seed", whole),
    "repetition_penalty": ("repetition_penalty", _number),
    "presence_penalty": ("presence_penalty", _number),
    "frequency_penalty": ("frequency_penalty", _number),
    "logit_bias": ("logit_bias", _bias),
    "logprobs": ("logprobs", _logprobs),
}
