"""Tables at several widths, character by character."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from pamx.bench.definitions import title
from pamx.bench.record import Record
from pamx.bench.words import bandwidth, definitions, duration, headed_table, rate, size, spread
from pamx.cli.bench.layout import laid_out

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


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_snapshot(record: Record, width: int) -> None:
    text = laid_out(record, width)
    snapshot = SNAPSHOTS / f"sweep-{width}.txt"
    if not snapshot.exists():  # to make them anew, delete them
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(text)
        pytest.fail(f"{snapshot} was missing and has been written: read it, and run again.")
    assert text == snapshot.read_text()
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_nothing_is_lost_in_a_narrow_terminal(record: Record, width: int) -> None:
    lines = laid_out(record, width, explained=False).splitlines()
    for table in headed_table(record):
        headers = [line for line in lines if line.lstrip().startswith("workload")]
        for column in table.columns:
            assert any(column.title in line for line in headers), column.title
    # Each part says of each row which it is, and all figures are there.
    text = " ".join(" ".join(lines).split())
    for cell in ("254 ms ±1%", "29.6 ±1%", "10.7 ms", "250 MB", "no difference (0.96-1.02)"):
        assert cell in text


def test_parts_end_between_groups(record: Record) -> None:
    lines = laid_out(record, 80, explained=False).splitlines()
    headers = [line.split() for line in lines if line.startswith("workload")]
    assert headers[0][2:] == ["TTFT", "TPOT", "E2E"]
    (whole,) = [line for line in laid_out(record, 200).splitlines() if " pages " in line]
    assert "TTFT" in whole


def test_a_name_is_folded_rather_than_a_table_split(record: Record) -> None:
    named = copy.deepcopy(record)
    for cell in named["cells"]:
        if cell["arm"] == "mlx-lm":
            cell["arm"] = "./a/server --of another --kind -x"
    lines = laid_out(named, 80).splitlines()
    assert any(line.strip().startswith("--kind") or line.strip() == "-x" for line in lines)


@pytest.mark.parametrize("kind", ["sweep", "limited", "kernel", "replay"])
def test_what_is_defined_is_what_is_shown(record: Record, kind: str) -> None:
    found = synthetic_record([256], [1], limits={"ttft": 1.0}) if kind == "limited" else record
    if kind in ("kernel", "replay"):
        found = record | {"kind": kind}
        replay = {"requests": 4, "offered_per_s": 1.0, "preemptions": 0}
        found["cells"] = [c | {"replay": replay} for c in record["cells"]]
        found["comparisons"] = []
    tables = headed_table(found)
    names = [line.partition(":")[0] for line in definitions(found, tables)]
    titles = list(dict.fromkeys(title(c.key) for table in tables for c in table.columns))
    assert names[: len(titles)] == titles
    assert len(set(names)) == len(names)
    about = {"sweep": {"relative speed", "value ±", "p50, p99", "times"}}
    about |= {"limited": about["sweep"], "kernel": {"value ±"}, "replay": {"p50, p99", "times"}}
    assert set(names[len(titles) :]) == about[kind]


def test_a_run_that_is_not_complete_says_what_it_lacks(record: Record) -> None:
    partial = copy.deepcopy(record) | {"complete": False}
    assert "Not complete: it was interrupted." in laid_out(partial, 80)
    partial["cells"] = [c for c in partial["cells"] if c["context"] == 256]
    assert "Not complete: 1024x1, 1024x4 were not measured." in laid_out(partial, 80)


def test_definitions_can_be_left_out(record: Record) -> None:
    assert "TTFT: Time to first token" in laid_out(record, 80)
    assert "TTFT: Time to first token" not in laid_out(record, 80, explained=False)


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
