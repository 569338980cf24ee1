"""What reaches a terminal, and what reaches a pipe."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pexpect
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pamx.cli.terminal import printable
from pamx.sizes import bytes_text, counted, need_and_left

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b31m\r\x00\x08\x7fé\t漢\n"
SCRIPT = f"from pamx.cli.terminal import write; write({HOSTILE!r})"


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    kept = printable(text)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in kept)
    assert not any(0x7F <= ord(c) <= 0x9F for c in kept)
    assert [c for c in text if c.isprintable()] == [c for c in kept if c.isprintable()]


def test_a_model_cannot_control_the_terminal(environment: dict[str, str]) -> None:
    shown, status = _on_a_terminal(["-c", SCRIPT], environment)
    assert status == 0
    assert shown == "]0;owned[31mred31mé\t漢\r\n"


def test_a_pipe_gets_the_text_as_it_is(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, env=environment)
    assert done.stdout.decode() == HOSTILE


@pytest.mark.parametrize(
    ("extra", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colour_only_where_it_is_wanted(
    environment: dict[str, str], extra: dict[str, str], coloured: bool
) -> None:
    args = ["-m", "pamx.cli", "models"]
    shown, status = _on_a_terminal(args, environment | extra)
    assert status == 0
    assert "smollm2-135m" in shown
    assert ("\x1b[" in shown) is coloured


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (93_450_000, "93.5 MB")),
        *((999_499_999, "999 MB"), (999_500_000, "1.00 GB"), (16_400_000_000, "16.4 GB")),
        (3 * 10**15, "3,000 TB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("need", "left", "texts"),
    [
        (15_932_000_000, 15_914_000_000, ("15.94 GB", "15.91 GB")),
        (16_000_000_001, 16_000_000_000, ("16.000000001 GB", "16.000000000 GB")),
        (192_000_000, 99_999_999, ("192 MB", "99 MB")),
        (94_400_000_001, 0, ("94.5 GB", "0.0 GB")),
        (1001, 1000, ("1.001 kB", "1.000 kB")),
    ],
)
def test_what_is_needed_is_never_what_is_left(need: int, left: int, texts: tuple[str, str]) -> None:
    """The one is rounded up, the other down, until they differ."""
    assert need_and_left(need, left) == texts


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12_345, "12,345 rows")]
)
def test_counts(count: int, text: str) -> None:
    assert counted(count, "row") == text


def _on_a_terminal(args: list[str], env: dict[str, str]) -> tuple[str, int]:
    child: Any = pexpect.spawn(sys.executable, args, env=env, encoding="utf-8", timeout=30)
    child.expect(pexpect.EOF)
    child.close()
    return child.before, child.exitstatus
