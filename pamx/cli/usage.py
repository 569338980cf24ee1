"""What the option parser says, in words for people who never heard of it."""

from __future__ import annotations

import re

# Beginnings of its messages; groups are taken over.
_WORDS = (
    (r"Value error, (.*)", r"\1"),
    (r"Input should be a valid integer.*", "it must be a whole number."),
    (r"Input should be a (?:valid|finite) number.*", "it must be a number."),
    (r"Input should be greater than or equal to (\S+)", r"it must be at least \1."),
    (r"Input should be less than or equal to (\S+)", r"it must be at most \1."),
    (r"Input should be greater than (\S+)", r"it must be more than \1."),
    (r"Input should be less than (\S+)", r"it must be less than \1."),
    (r"Unable to parse input string as an integer, exceeded maximum size", "it is too large."),
    (r"Input should be a valid string, unable to parse raw data.*", "it is not valid UTF-8."),
    (r"Got unexpected extra argument(?:\(s\)|s)? \((.*)\)", r"Nothing is expected here: \1"),
)
_ENDLESS = re.compile(r"\S{300,}")


def reworded(message: str) -> str:
    """The message in our words, if it is one that we know, without the middle of endless words."""
    for pattern, words in _WORDS:
        if re.fullmatch(pattern, message, re.DOTALL):
            message = re.sub(pattern, words, message, count=1, flags=re.DOTALL)
            break
    return _ENDLESS.sub(lambda word: f"{word[0][:40]}...{word[0][-10:]}", message)
