"""The planners' sentences with numbers as the rest of the report has them."""

from __future__ import annotations

import re

from pamx.sizes import bytes_text

_BINARY = {"KiB": 1 << 10, "MiB": 1 << 20}
_SIZE = re.compile(r"\b(\d+(?:\.\d+)?) (KiB|MiB)\b")
_LONG = re.compile(r"(?<![\w.,])\d{4,}(?![\w,]|\.\d)")  # no part of a name or of a fraction


def for_people(text: str) -> str:
    """`text` with decimal units and with commas between thousands."""
    text = _SIZE.sub(lambda found: bytes_text(float(found[1]) * _BINARY[found[2]]), text)
    return _LONG.sub(lambda found: f"{int(found[0]):,}", text)
