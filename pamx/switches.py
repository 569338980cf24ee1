"""Switches in the environment, PAMX_DISABLE_NATIVE and the like: what counts as on.

native/plan/overrides.cpp reads its own in the same way. This imports nothing of pamx: setup.py
runs it.
"""

from __future__ import annotations

import os

NO = ("", "0", "false", "no", "off")
YES = ("1", "true", "yes", "on")


def switched_on(name: str, *, unset: bool = False) -> bool:
    """Whether a variable says yes; `unset`: what it stands for when it is absent or empty.

    Anything but a no counts as a yes, and `pamx doctor` names what is neither (see `is_clear`).
    """
    value = os.environ.get(name, "").lower()
    return value not in NO if value else unset


def is_clear(name: str) -> bool:
    """Whether a variable is one of the words for yes and no, or absent."""
    return os.environ.get(name, "").lower() in NO + YES
