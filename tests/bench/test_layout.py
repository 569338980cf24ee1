"""Tables at several widths, character by character."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from pamx.bench.definitions import title
from pamx.bench.formats import as_text
from pamx.bench.numerals import bandwidth, duration, rate, size, spread, times
from pamx.bench.record import Record
from pamx.bench.words import comparison_words, definitions, headed_table, notes
from pamx.cli.bench.layout import laid_out
from pamx.sizes import counted

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
    for cell in (
        "253 ms ±2%",
        "27.9 ±18%",
        "10.5 ms",
        "250 MB",
        "0.99x (0.96-1.02) no difference detected",
    ):
        assert cell in text


def test_parts_end_between_groups(record: Record) -> None:
    lines = laid_out(record, 100, explained=False).splitlines()
    headers = [line.split() for line in lines if line.startswith("workload")]
    assert headers[0][2:] == ["samples", "TTFT", "TPOT", "E2E"]
    (whole,) = [line for line in laid_out(record, 240).splitlines() if " pages " in line]
    assert "TTFT" in whole


def test_a_name_is_folded_rather_than_a_table_split() -> None:
    named = synthetic_record([256, 1024], [1, 4], speeds={"mlx-lm": 3.0})
    for cell in named["cells"]:
        if cell["arm"] == "mlx-lm":
            cell["arm"] = "./a/server --of another --kind -x"
    lines = laid_out(named, 100, explained=False).splitlines()
    (header,) = [line for line in lines if "TTFT" in line and "samples" in line]
    assert "E2E" in header
    assert any(line.strip() == "another --kind -x" for line in lines)


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
    assert any("may be chance" in note for note in notes(found)) == (kind == "replay")
    assert names[: len(titles)] == titles
    assert len(set(names)) == len(names)
    about = {"sweep": {"verdict", "value", "interval", "p50, p90, p99", "times", "relative speed"}}
    about |= {"limited": about["sweep"], "kernel": {"value", "interval"}}
    about |= {"replay": {"p50, p90, p99", "times"}}
    about[kind].add("control")
    assert set(names[len(titles) :]) == about[kind]


def test_a_run_that_is_not_complete_says_what_it_lacks(record: Record) -> None:
    partial = copy.deepcopy(record) | {"complete": False}
    assert "Not complete: it was interrupted." in laid_out(partial, 80)
    partial["cells"] = [c for c in partial["cells"] if c["context"] == 256]
    assert "Not complete: 1024x1, 1024x4 were not measured." in laid_out(partial, 80)


def test_a_replay_tells_what_arrived_and_what_met_the_limits(record: Record) -> None:
    found = copy.deepcopy(record) | {"kind": "replay", "comparisons": []}
    found["plan"]["limits"] = {"ttft": 0.5, "e2e": 2.0}
    found["provenance"]["settings"] = {"arrivals": "poisson:3"}
    replay = {"requests": 12, "offered_per_s": 2.0, "preemptions": 0, "met": 5}
    found["cells"] = [found["cells"][0] | {"replay": replay}]
    text = laid_out(found, 100)
    assert text.startswith("tiny, fast, poisson:3, on Example CPU")
    assert "12 requests, drawn from poisson:3 with seed 3, arrived within 6.00 s: 2.00" in text
    assert "\n5 of 12 requests met TTFT ≤ 500 ms and E2E ≤ 2 s." in text
    assert "It was replayed once: figures have no interval" in text
    assert "control" not in text
    found["provenance"]["settings"] = {"trace": "/a/trace.jsonl"}
    found["cells"][0]["replay"] = replay | {"met": None, "offered_per_s": None}
    text = laid_out(found, 100)
    assert text.startswith("tiny, fast, trace.jsonl, on")
    assert "12 requests arrived all at once." in text
    assert "met" not in text.split("Definitions")[0]


def test_goodput_of_a_sweep_names_its_limits() -> None:
    found = synthetic_record([256], [1], limits={"ttft": 1.0, "tpot": 0.05})
    assert "Goodput counts requests with TTFT ≤ 1 s and TPOT ≤ 50 ms." in notes(found)
    assert not any("Goodput" in note for note in notes(synthetic_record([256], [1])))


def test_arms_that_are_invalid_for_one_reason_share_a_sentence(record: Record) -> None:
    bad = copy.deepcopy(record)
    first = [cell for cell in bad["cells"] if cell["workload"] == "256x1"]
    for cell in first:
        cell |= {"valid": False, "why_invalid": "it is too long."}
    said = [note for note in notes(bad) if "invalid" in note]
    assert said == ["256x1, all 4 arms: invalid, because it is too long."]
    first[0]["valid"] = True
    first[1]["why_invalid"] = "it is too wide."
    said = [note for note in notes(bad) if "invalid" in note]
    assert said == [
        "256x1, pamx, partition auto, control: invalid, because it is too wide.",
        "256x1, pamx, partition 512; mlx-lm: invalid, because it is too long.",
    ]


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
    assert spread({"typical": 2.0, "low": 1.99, "high": 2.01}, duration) == "2.00 s ±0.5%"
    # A wide interval is lopsided: its ends say so.
    assert spread({"typical": 2.0, "low": 0.9, "high": 4.7}, duration) == "2.00 s (900 ms-4.70 s)"
    assert spread({"typical": 2.0, "low": 1.4, "high": 4.7}, duration) == "2.00 s (1.40-4.70)"
    assert spread({"typical": 40.0, "low": 0.004, "high": 9e4}, rate) == "40.0 (0.004-90,000)"
    assert [times(v) for v in (1.084, 0.34, 0.034, 31.4)] == ["1.08x", "0.34x", "0.034x", "31.4x"]
    assert [counted(n, "sample") for n in (0, 1, 2000)] == [
        "0 samples",
        "1 sample",
        "2,000 samples",
    ]


def comparison(**fields: Any) -> str:
    return comparison_words({"low": None, "high": None, "pairs": 10, **fields})


def test_comparisons_in_words() -> None:
    wide = comparison(ratio=1.03, low=0.45, high=2.36, verdict="cannot tell")
    assert wide == "1.03x (0.45-2.36) cannot tell"
    equal = comparison(ratio=0.999, low=0.97, high=1.03, verdict="no difference detected")
    assert equal == "1.00x (0.97-1.03) no difference detected"
    narrow = comparison(ratio=1.004, low=1.002, high=1.006, verdict="faster")
    assert narrow == "1.004x (1.002-1.006) faster"
    close = comparison(ratio=1.04, low=1.00009, high=1.08, verdict="faster")
    assert close == "1.0400x (1.0001-1.0800) faster"
    few = comparison(ratio=1.8, pairs=2, verdict="too few samples")
    assert few == "1.80x, 2 samples, no verdict"
    one = comparison(ratio=28.4, pairs=1, verdict="too few samples")
    assert one == "1 sample, no verdict"
    assert comparison(ratio=1.1, verdict="cannot tell") == "1.10x cannot tell"


def test_too_few_samples_still_have_ratios() -> None:
    found = synthetic_record([256], [1], speeds={"mlx-lm": 2.0}, rounds=1)
    text = laid_out(found, 200)
    assert re.search(r"mlx-lm +0\.\d\dx, 2 samples, no verdict", text)
    assert "±" not in text.split("Definitions", maxsplit=1)[0]  # no interval without samples


def test_the_first_arm_has_its_own_samples_only(record: Record) -> None:
    base, control = record["cells"][:2]
    assert control["control_of"] == base["arm"]
    for cell in (base, control):
        assert cell["figures"]["ttft"]["samples"] == len(cell["samples"]) == 10
    lines = laid_out(record, 200).splitlines()
    assert sum(line.split()[:2] == ["256x1", "control"] for line in lines) >= 2


def test_percentiles_that_samples_cannot_carry_are_not_shown() -> None:
    few = synthetic_record([16], [1], [None], others=(), rounds=1)  # 2 answers of 8 tokens
    assert {c["requests"]["ttft"]["p90"] for c in few["cells"]} == {None}
    assert "gap p90" in laid_out(few, 200)
    assert "gap p99" not in laid_out(few, 200)
    many = synthetic_record([16], [4], [None], others=(), rounds=2)
    assert "gap p99" in laid_out(many, 200)


def test_definitions_are_short(record: Record) -> None:
    text = laid_out(record, 100)
    explained = text[text.index("\nDefinitions\n") :].splitlines()[2:]
    assert len(explained) <= 30
    assert "Definitions" not in laid_out(record, 100, explained=False)
    assert "\x1b[2mDefinitions\x1b[0m" in laid_out(record, 100, styled=True)


HOSTILE = "\x1b]0;owned\x07\x1b[2Jarm\u202e\n\x9b1m\ud800"


def test_nothing_from_a_file_reaches_the_terminal(record: Record) -> None:
    bad = copy.deepcopy(record)
    for cell in bad["cells"]:
        cell["arm"] = cell["dispatch"]["kernel"] = HOSTILE
    for found in bad["comparisons"]:
        found["arm"] = found["base"] = HOSTILE
    bad["warnings"] = [HOSTILE]
    bad["definitions"] = {"ttft": HOSTILE}
    bad["provenance"]["model"] = {"name": HOSTILE, "compute": HOSTILE}
    bad["provenance"]["machine"] = bad["provenance"]["machine"] | {"chip": HOSTILE}
    for text in (laid_out(bad, 100), *notes(bad), as_text(bad, "md"), as_text(bad, "csv")):
        assert all(c.isprintable() or c == "\n" for c in text)
        text.encode()  # no lone surrogates
    assert "\ufffd[2Jarm" in laid_out(bad, 200)
