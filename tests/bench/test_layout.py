"""Tables at several widths and in a pipe, character by character."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from pamx.bench.record import Record
from pamx.bench.words import bandwidth, duration, rate, size, spread
from pamx.cli.bench.layout import WIDE, laid_out

from .synthetic import synthetic_record

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(scope="module")
def record() -> Record:
    """Every kind of cell: fast, slow, invalid, with other outputs, with a warning."""
    found = synthetic_record(contexts=[256, 1024], batches=[1, 4], speeds={"mlx-lm": 3.0})
    invalid = found["cells"][2]
    invalid |= {"valid": False, "why_invalid": "partition 512 was asked for; 256 ran."}
    invalid |= {"figures": {}, "requests": {}, "samples": []}
    found["comparisons"] = [
        c for c in found["comparisons"] if (c["workload"], c["arm"]) != ("256x1", invalid["arm"])
    ]
    found["warnings"] = ["1024x4: other programs used 31% of the CPUs meanwhile."]
    return found


@pytest.mark.parametrize("width", [60, 80, 120, 200, None])
def test_snapshot(record: Record, width: int | None) -> None:
    text = laid_out(record, width or WIDE)
    snapshot = SNAPSHOTS / f"sweep-{width or 'pipe'}.txt"
    if not snapshot.exists():  # to make them anew, delete them
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(text)
        pytest.fail(f"{snapshot} was missing and has been written: read it, and run again.")
    assert text == snapshot.read_text()
    if width is not None:
        assert max(len(line) for line in text.splitlines()) <= width


def test_no_row_is_lost_in_a_narrow_terminal(record: Record) -> None:
    text = laid_out(record, 60)
    assert "Without room here:" in text
    assert text.count("invalid") >= 1
    wide = laid_out(record, WIDE)
    assert "Without room here" not in wide
    assert "\x1b" not in wide


def test_an_interrupted_run_says_so(record: Record) -> None:
    partial = copy.deepcopy(record) | {"complete": False}
    assert "Interrupted" in laid_out(partial, 80)


def test_definitions_can_be_left_out(record: Record) -> None:
    assert "ttft: Time to first token" in laid_out(record, 80)
    assert "ttft: Time to first token" not in laid_out(record, 80, definitions=False)


def test_numbers() -> None:
    assert [duration(s) for s in (1.234, 0.9999, 0.0123, 1e-3, 0.00099, 4.2e-6, None)] == [
        *("1.23 s", "1.00 s", "12.3 ms", "1.00 ms", "990 µs", "4.20 µs", "-")
    ]
    assert [rate(v) for v in (1234.5, 99.96, 99.94, 9.999, 0.5)] == [
        *("1,234", "100", "99.9", "10.0", "0.50")
    ]
    assert (size(2.5e9), size(3e6), size(1500), size(None)) == (
        "2.50 GB",
        "3.00 MB",
        "1.50 kB",
        "-",
    )
    assert bandwidth(1.25e10) == "12.5 GB/s"
    figure = {"typical": 2.0, "low": 1.9, "high": 2.1}
    assert spread(figure, duration) == "2.00 s ±5%"
    assert spread(figure | {"low": None, "high": None}, duration) == "2.00 s"
