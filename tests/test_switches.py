"""What counts as on, in Python and in the native library alike."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pamx.switches import is_clear, switched_on


def printed(code: str, **environment: str) -> str:
    """What a fresh Python prints that runs `code`."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("value", "on", "clear"),
    [
        *((word, False, True) for word in ("", "0", "false", "no", "off", "FALSE", "Off")),
        *((word, True, True) for word in ("1", "true", "yes", "on", "True")),
        ("2", True, False),
        ("maybe", True, False),
    ],
)
def test_a_switch(monkeypatch: pytest.MonkeyPatch, value: str, on: bool, clear: bool) -> None:
    monkeypatch.setenv("PAMX_DEBUG", value)
    assert switched_on("PAMX_DEBUG") is on
    assert switched_on("PAMX_DEBUG", unset=True) is (on or value == "")
    assert is_clear("PAMX_DEBUG") is clear
    read = "from pamx.native.gpu_plan import overrides_here as o; print(o().disable_nax)"
    assert printed(read, PAMX_DISABLE_NAX=value) == f"{on}\n"


@pytest.mark.parametrize(("value", "mode"), [("false", "native"), ("0", "native"), ("on", "mlx")])
def test_the_library_is_switched_off_by_a_yes_alone(value: str, mode: str) -> None:
    code = "from pamx.attention.backend import choose_backend as c; print(c().name)"
    assert printed(code, PAMX_DISABLE_NATIVE=value).startswith(mode)
