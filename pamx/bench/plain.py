"""Text from anywhere made safe to show."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` on one line, without what a terminal obeys instead of showing.

    Line breaks and tabs become spaces; control and format characters (such as those that reverse
    the direction of writing) and lone surrogates become U+FFFD.
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
