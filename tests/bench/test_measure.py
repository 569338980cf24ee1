"""One workload: order of turns, when it ends, and which cells are marked invalid."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pamx.bench.measure import FEWEST_BLOCKS, Patience, least_seconds, measure
from pamx.bench.metrics import DECISIVE
from pamx.bench.order import blocks
from pamx.bench.outputs import compare_outputs
from pamx.bench.program import Outcome, ProgramError, ProgramRefusal
from pamx.bench.results import comparison_records, imprecise
from pamx.bench.timetable import Timetable, work
from pamx.bench.workload import Arm, Workload, arms

from .synthetic import Noise, outcome, patience

WORKLOAD = Workload(64, 2, 8)
A, B = Arm("A", "pamx"), Arm("B", "mlx-lm")
THREE = patience(FEWEST_BLOCKS)


def forced(partition: int) -> Arm:
    return Arm(f"P{partition}", "pamx", {"partition": partition})


def test_blocks_are_mirrored_and_their_order_is_random() -> None:
    orders = Counter()
    for block, _ in zip(blocks("ABC", 0), range(60), strict=False):
        names = [name for _, name in block]
        assert names == names[::-1]
        assert [half for half, _ in block] == [0, 0, 0, 1, 1, 1]
        assert sorted(names) == list("AABBCC")
        orders["".join(names[:3])] += 1
    assert len(orders) == 6
    again = [block for block, _ in zip(blocks("ABC", 0), range(5), strict=False)]
    assert again == [block for block, _ in zip(blocks("ABC", 0), range(5), strict=False)]


class Clock:
    """Each run takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, _: Arm) -> Outcome:
        self.now += 1.0
        return outcome(WORKLOAD, 1.0)


@pytest.mark.parametrize(
    ("seconds", "samples", "took"),
    [(0, 1, 4), (5.9, 1, 4), (6, 2, 6), (13.9, 4, 10), (14, 6, 14), (15, 6, 14), (18, 8, 18)],
)
def test_time_is_a_limit(seconds: float, samples: int, took: float) -> None:
    clock, said = Clock(), list[str]()
    cells = measure(
        *(WORKLOAD, [A, B], clock.run, Patience(seconds, 0.0, clock), 0),
        tell=said.append,
    )
    assert [len(c.samples) for c in cells] == [samples] * 2
    assert clock.now == took  # two seconds to warm up, four a block; one sample of each at least
    # What will not be enough for a verdict is said before it is measured.
    assert bool(said) == (samples < 6)
    for text in said:
        assert text.startswith("64x2: 3 blocks, which a verdict needs, will take about 12 s, and ")
    few = [w for w in imprecise(cells, WORKLOAD, 0.01, DECISIVE) if "a verdict needs 6" in w]
    assert bool(few) == (samples < 6)
    verdicts = {c["verdict"] for c in comparison_records(cells, WORKLOAD, 0.03)}
    assert verdicts == {"too few samples" if samples < 6 else "no difference detected"}
    assert least_seconds(cells) == 4


def test_shares_follow_the_work_and_what_has_no_room_is_left_out() -> None:
    clock = Clock()
    shapes = [Workload(64, 1, 4), Workload(64, 4, 4), Workload(1024, 4, 4), Workload(64, 8, 4)]
    table = Timetable(100, {w.id: work(w) for w in shapes}, clock)
    shares = []
    for workload in shapes:
        shares.append(share := table.share(workload))
        if share is not None:
            table.measured(workload, work(workload) / 40)  # 3, 8, 103 and 14 seconds
            clock.now += share
    whole = sum(work(w) for w in shapes)
    assert shares[:2] == [pytest.approx(100 * work(w) / whole) for w in shapes[:2]]
    assert shares[2] is None
    assert shares[3] == pytest.approx(100 - sum(shares[:2]))  # what the others left
    assert table.without == ["1024x4"]
    assert Timetable(0, {"64x1": 1}, clock).share(shapes[0]) == 0  # the first one, whatever


def test_it_ends_when_intervals_are_narrow() -> None:
    noise = Noise(0, jitter=0.001, stalls=0)
    cells = measure(
        WORKLOAD, [A, B], lambda _: outcome(WORKLOAD, noise()), patience(30, precision=0.02), 0
    )
    assert 8 <= len(cells[0].samples) < 60


def test_every_arm_is_warmed_up_before_any_is_measured() -> None:
    calls = []

    def run(arm: Arm) -> Outcome:
        calls.append(arm.id)
        return outcome(WORKLOAD, 1.0)

    measure(WORKLOAD, [A, B], run, THREE, 0)
    assert calls[:2] == ["A", "B"]
    assert len(calls) == 2 + 2 * 2 * FEWEST_BLOCKS


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"dispatch": {"kernel": "native-cpu", "partition": 256}}, "native-cpu ran with 256"),
        ({"cannot_force": "cannot force here: no library"}, "cannot force here: no library"),
    ],
)
def test_a_partition_that_did_not_run_is_invalid(told: dict[str, Any], why: str) -> None:
    base, cell = measure(
        WORKLOAD, [A, forced(512)], lambda _: outcome(WORKLOAD, 1.0, told), THREE, 0
    )
    assert not base.invalid
    assert why in cell.invalid
    assert not cell.samples
    ran = {"dispatch": {"kernel": "native-cpu", "partition": 512}}
    _, cell = measure(WORKLOAD, [A, forced(512)], lambda _: outcome(WORKLOAD, 1.0, ran), THREE, 0)
    assert not cell.invalid


def test_an_arm_that_does_other_work_is_invalid() -> None:
    shorter = Workload(60, 2, 4)

    def run(arm: Arm) -> Outcome:
        return outcome(WORKLOAD if arm is A else shorter, 1.0)

    _, cell = measure(WORKLOAD, [A, B], run, THREE, 0)
    assert "4 of 8 tokens" in cell.invalid


@pytest.mark.parametrize("error", [ProgramError("It died."), ProgramRefusal("Too long.")])
@pytest.mark.parametrize("when", [0, 3])
def test_another_program_that_fails_costs_its_own_cell_only(error: Exception, when: int) -> None:
    calls = Counter[str]()

    def run(arm: Arm) -> Outcome:
        calls[arm.id] += 1
        if arm is B and calls["B"] > when:
            raise error
        return outcome(WORKLOAD, 1.0)

    base, cell = measure(WORKLOAD, [A, B], run, THREE, 0)
    assert str(error).rstrip(".") in cell.invalid
    assert len(base.samples) == 2 * FEWEST_BLOCKS


def test_outputs_are_compared_token_for_token() -> None:
    def run(arm: Arm) -> Outcome:
        return outcome(WORKLOAD, 1.0, token=7 if arm is A else 8)

    _, cell = measure(WORKLOAD, [A, B], run, THREE, 0)
    assert cell.outputs == {
        "compared_with": "A",
        "same": False,
        "requests_that_differ": 2,
        "request": 0,
        "place": 0,
        "base_token": 7,
        "arm_token": 8,
    }
    assert compare_outputs([[1, 2]], [[1, 2]], "A")["same"] is True
    assert compare_outputs([[1, 2]], None, "A")["same"] is None
    shorter = compare_outputs([[1], [1, 2]], [[1], [1]], "A")
    assert (shorter["request"], shorter["place"], shorter["arm_token"]) == (1, 1, None)


def test_outputs_that_change_between_samples_are_counted() -> None:
    turns = iter(range(100))
    cells = measure(
        WORKLOAD, [A], lambda _: outcome(WORKLOAD, 1.0, token=next(turns) // 3), THREE, 0
    )
    assert cells[0].other_outputs == 4


def test_arms_are_named_by_what_they_differ_in() -> None:
    found = arms([512, None], [16], ["auto"], ["mlx-lm", "./other -x"], control=True)
    assert [arm.id for arm in found] == [
        "pamx, partition auto",
        "pamx, partition auto, control",
        "pamx, partition 512",
        "mlx-lm",
        "./other -x",
    ]
    assert found[1].control_of == found[0].id
    assert found[1].settings == found[0].settings
    assert [a.id for a in arms([None], [16], ["auto"], [], control=False)] == ["pamx"]
    named = arms([None], [8, 16], ["float16", "float32"], [], control=False)
    assert named[0].id == "pamx, blocks of 8, float16"
    assert len(named) == 4


def test_other_work_in_a_later_sample_is_invalid() -> None:
    short = Workload(64, 2, 7)
    calls = Counter[str]()

    def run(arm: Arm) -> Outcome:
        calls[arm.id] += 1
        return outcome(short if arm is B and calls["B"] == 3 else WORKLOAD, 1.0)

    base, cell = measure(WORKLOAD, [A, B], run, THREE, 0)
    assert not base.invalid
    assert "7 of 8 tokens" in cell.invalid


def test_the_failure_of_the_base_names_the_workload() -> None:
    def run(_: Arm) -> Outcome:
        raise ProgramError("pamx's engine was ended by signal 9.", "Take a smaller batch.")

    with pytest.raises(ProgramError, match=r"64x2: pamx's engine .* Take a smaller batch"):
        measure(WORKLOAD, [A, B], run, THREE, 0)


def test_a_missed_precision_is_told() -> None:
    noise = Noise(0)
    cells = measure(WORKLOAD, [A, B], lambda _: outcome(WORKLOAD, noise()), THREE, 0)
    (warning,) = imprecise(cells, WORKLOAD, 1e-6, DECISIVE)
    assert warning.startswith("64x2: the time was over")
    assert not imprecise(cells, WORKLOAD, 1e6, DECISIVE)
