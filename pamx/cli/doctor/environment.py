"""Check of the environment variables that pamx reads: a wrong one is named, and what to do."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable

from pamx.cli.doctor.row import Row, Status
from pamx.errors import PamxError
from pamx.native.partitions import partition_from_environment
from pamx.switches import is_clear


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


def check_partition() -> None:
    """Raises RequestError if PAMX_FORCE_PARTITION is nothing that can be forced."""
    partition_from_environment(_BLOCK_SIZE)


_BLOCK_SIZE = 16  # of pages, unless one asks otherwise

# Each raises a PamxError if the variable is wrong; what it stops then is in the status.
_CHECKED: dict[str, tuple[Status, Callable[[], None]]] = {
    "PAMX_HOME": ("fail", _home),
    "PAMX_WEIGHT_CACHE": ("fail", _weight_cache),
    "PAMX_NUM_THREADS": ("warn", _threads),
    "PAMX_CPU_ISA": ("warn", _isa),
    "PAMX_FORCE_PARTITION": ("fail", check_partition),
}
_SWITCHES = (
    *("PAMX_BLAS", "PAMX_DEBUG", "PAMX_NO_NATIVE", "PAMX_WERROR"),
    *("PAMX_DISABLE_NATIVE", "PAMX_DISABLE_GQA_DECODE", "PAMX_DISABLE_NAX"),
)


def check_environment() -> Row:
    found = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("PAMX_")}
    wrong: list[str] = []
    fixes: list[str] = []
    status: Status = "ok"
    for name in found:
        try:
            if name in _CHECKED:
                _CHECKED[name][1]()
            elif name not in _SWITCHES:
                raise PamxError(f"pamx reads no variable {name}.", _meant(name))
            elif not is_clear(name):
                raise PamxError(
                    f"{name} is {found[name]!r}, neither 0, false, no, off nor 1, true, yes, on: "
                    "it counts as on.",
                    "Say 1 or 0, or unset it.",
                )
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
    known = [*_CHECKED, *_SWITCHES]
    near = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {near[0]}? Else unset it." if near else "Unset it."
