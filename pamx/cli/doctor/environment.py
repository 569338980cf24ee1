"""Check of the environment variables that pamx reads: a wrong one is named, and what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable

from pamx.cli.doctor.row import Row, Status
from pamx.errors import PamxError


def _threads() -> None:
    from pamx.native.loader import threads_from_environment

    threads_from_environment()


def _isa() -> None:
    from pamx.native.loader import isa_from_environment

    isa_from_environment()


def _weight_cache() -> None:
    from pamx.models.packed import limit_from_environment

    limit_from_environment()


def _home() -> None:
    from pamx.models.cache_dir import cache_root

    cache_root()


def _partition() -> None:
    text = os.environ.get("PAMX_FORCE_PARTITION", "")
    if text and not (re.fullmatch("[0-9]{1,10}", text) and int(text) < 2**31):
        raise PamxError(
            f"PAMX_FORCE_PARTITION is {text!r}, not a number of tokens.", "Correct or unset it."
        )


def _blas() -> None:
    if os.environ.get("PAMX_BLAS", "") not in ("", "0", "1"):
        raise PamxError(
            f"PAMX_BLAS is {os.environ['PAMX_BLAS']!r}, neither 0 nor 1.", "Correct or unset it."
        )


# Each raises a PamxError if the variable is wrong; what it stops then is in the status.
_CHECKED: dict[str, tuple[Status, Callable[[], None]]] = {
    "PAMX_HOME": ("fail", _home),
    "PAMX_WEIGHT_CACHE": ("fail", _weight_cache),
    "PAMX_NUM_THREADS": ("warn", _threads),
    "PAMX_CPU_ISA": ("warn", _isa),
    "PAMX_FORCE_PARTITION": ("fail", _partition),
    "PAMX_BLAS": ("warn", _blas),
}
_SWITCHES = ("PAMX_DEBUG", "PAMX_NO_NATIVE", "PAMX_WERROR")
_FAMILY = "PAMX_DISABLE_"  # one for each path that can be switched off


def check_environment() -> Row:
    found = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("PAMX_")}
    wrong: list[str] = []
    fixes: list[str] = []
    status: Status = "ok"
    for name in found:
        try:
            if name in _CHECKED:
                _CHECKED[name][1]()
            elif name not in _SWITCHES and not name.startswith(_FAMILY):
                raise PamxError(f"pamx reads no variable {name}.", _meant(name))
        except PamxError as error:
            wrong.append(error.message)
            fixes.append(error.hint if name in error.hint else f"{name}: {error.hint}")
            bad = _CHECKED.get(name, ("warn", None))[0]
            status = "fail" if "fail" in (bad, status) else "warn"
    if wrong:
        return Row("environment", status, " ".join(wrong), found, " ".join(fixes))
    if not found:
        return Row("environment", "ok", "No PAMX_ variables are set.", found)
    text = ", ".join(f"{name}={value}" for name, value in found.items())
    return Row("environment", "ok", f"{text}.", found)


def _meant(name: str) -> str:
    known = [*_CHECKED, *_SWITCHES, "PAMX_DISABLE_NATIVE"]
    near = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {near[0]}? Else unset it." if near else "Unset it."
