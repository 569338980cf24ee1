"""The figures of attention calls: as a share of memory's bandwidth, where that means something."""

from __future__ import annotations

import pytest

from pamx.bench.kernel import add_cells
from pamx.bench.program import Outcome
from pamx.bench.provenance import provenance
from pamx.bench.record import Record, new_record
from pamx.bench.words import headed_table
from pamx.bench.workload import Arm, Workload
from pamx.cli.bench.layout import laid_out

from .synthetic import MACHINE, measured, patience

MB = 1_000_000
WORKLOAD = Workload(4096, 8, 1)


def calls(nbytes: int, cache_bytes: int | None = 32 << 20, rounds: int = 4) -> Record:
    """A record of a call that takes as long as a plain read and a quarter more."""
    arms = [Arm("pamx", "pamx"), Arm("copy", "machine"), Arm("read", "machine")]

    def run(arm: Arm) -> Outcome:
        seconds = nbytes / 10e9 * (1.25 if arm.id == "pamx" else 1.0)
        return Outcome(
            *([], {"call": seconds, "bandwidth": nbytes / seconds, "calls": 1500}, None, seconds),
            {"pool_bytes": nbytes, "dispatch": {"kernel": "native-cpu", "partition": 1024}},
        )

    made = provenance(["pamx", "bench"], 0, {}) | {"heads": [8, 2, 64]}
    made["machine"] = MACHINE | {"cache_bytes": cache_bytes}
    record = new_record("kernel", made, {"precision": 0.03})
    add_cells(record, measured(WORKLOAD, arms, run, patience(rounds), 0), WORKLOAD)
    return record


@pytest.mark.parametrize(
    ("nbytes", "cache_bytes", "said"),
    [
        (1 * MB, 32 << 20, "in cache"),
        (33 * MB, 32 << 20, "in cache"),
        (34 * MB, 32 << 20, "80%, partly in cache"),
        (67 * MB, 32 << 20, "80%, partly in cache"),
        (68 * MB, 32 << 20, "80%"),
        (68 * MB, 64 << 20, "80%, partly in cache"),
        (20 * MB, 16 << 20, "80%, partly in cache"),  # another cache may lie behind it
        (68 * MB, None, "80%"),
        (60 * MB, None, "in cache"),
    ],
)
def test_what_caches_hold_has_no_share_of_memory(
    nbytes: int, cache_bytes: int | None, said: str
) -> None:
    record = calls(nbytes, cache_bytes)
    share = record["cells"][0].get("share_of_read")
    assert share == (pytest.approx(0.8) if "%" in said else None)
    table = headed_table(record)[0]
    place = [column.key for column in table.columns].index("share_of_read")
    assert [row[place] for row in table.rows] == [said, "", ""]  # the machine is what it is told of


def test_a_sample_says_of_how_many_calls_it_is() -> None:
    table = headed_table(calls(100 * MB))[0]
    place = [column.title for column in table.columns].index("calls")
    assert {row[place] for row in table.rows} == {"1,500"}


def test_a_share_needs_no_interval() -> None:
    assert calls(100 * MB, rounds=1)["cells"][0]["share_of_read"] == pytest.approx(0.8)


def test_partitions_have_separators() -> None:
    assert " 1,024 " in laid_out(calls(100 * MB), 120)
