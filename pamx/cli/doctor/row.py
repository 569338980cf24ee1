"""One line of the doctor's report, and running a check so that it always ends in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pamx.errors import PamxError

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Row:
    """What one check found.

    Attributes:
        id: A stable name.
        status: "fail": pamx cannot work; "warn": it works, worse; "skip": does not apply here.
        message: For people, one sentence.
        value: For programs: anything that JSON can hold; bytes, seconds.
        fix: What to do about it; empty if nothing needs doing.
    """

    id: str
    status: Status
    message: str
    value: Any = None
    fix: str = ""


Check = Callable[[], Row]


def guarded(name: str, check: Check) -> Row:
    """Runs a check; one that raises has failed, with the reason."""
    try:
        return check()
    except PamxError as error:
        return Row(name, "fail", error.message, fix=error.hint)
    except Exception as error:  # a report is worth most where something is broken
        return Row(name, "fail", f"{type(error).__name__}: {error}".rstrip(": "))
