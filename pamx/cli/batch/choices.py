"""What a user can choose by a word."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """What a batch file has on its lines."""

    AUTO = "auto"
    OPENAI = "openai"
    JSONL = "jsonl"
    TEXT = "text"


class Order(StrEnum):
    """In which order results are written."""

    INPUT = "input"
    COMPLETED = "completed"
