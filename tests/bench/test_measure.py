"""One workload: order of turns, when it ends, and which cells are marked invalid."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import pytest

from pamx.bench.measure import FEWEST_ROUNDS, Cell, Patience, verdict_seconds, warm_up
from pamx.bench.metrics import DECISIVE
from pamx.bench.order import rounds
from pamx.bench.outputs import compare_outputs
from pamx.bench.program import Outcome, ProgramError, ProgramRefusal
from pamx.bench.results import comparison_records, imprecise
from pamx.bench.timetable import Timetable, in_seconds, in_words, work
from pamx.bench.workload import Arm, Workload, arms

from .synthetic import Noise, measured, outcome, patience

WORKLOAD = Workload(64, 2, 8)
A, B = Arm("A", "pamx"), Arm("B", "mlx-lm")
THREE = patience(FEWEST_ROUNDS)


def forced(partition: int) -> Arm:
    return Arm(f"P{partition}", "pamx", {"partition": partition})


def test_rounds_are_mirrored_and_their_order_is_random() -> None:
    orders = Counter()
    for turns, _ in zip(rounds("ABC", 0), range(60), strict=False):
        names = [name for _, name in turns]
        assert names == names[::-1]
        assert [half for half, _ in turns] == [0, 0, 0, 1, 1, 1]
        assert sorted(names) == list("AABBCC")
        orders["".join(names[:3])] += 1
    assert len(orders) == 6
    again = [turns for turns, _ in zip(rounds("ABC", 0), range(5), strict=False)]
    assert again == [turns for turns, _ in zip(rounds("ABC", 0), range(5), strict=False)]


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
    [(0, 1, 4), (3.9, 1, 4), (4, 2, 6), (11.9, 4, 10), (12, 6, 14), (13, 6, 14), (16, 8, 18)],
)
def test_time_is_a_limit(seconds: float, samples: int, took: float) -> None:
    clock = Clock()
    cells = measured(WORKLOAD, [A, B], clock.run, Patience(seconds, 0.0, clock), 0)
    assert [len(c.samples) for c in cells] == [samples] * 2
    assert clock.now == took  # two seconds to warm up, four a round; one sample of each at least
    few = [w for w in imprecise(cells, WORKLOAD, 0.01, DECISIVE) if "a verdict needs 6" in w]
    assert bool(few) == (samples < 6)
    verdicts = {c["verdict"] for c in comparison_records(cells, WORKLOAD, 0.03)}
    assert verdicts == {"too few samples" if samples < 6 else "no difference detected"}
    assert verdict_seconds(cells) == 12


SHAPES = [Workload(64, 1, 4), Workload(64, 4, 4), Workload(1024, 4, 4), Workload(64, 8, 4)]


def times(seconds: float | None, pace: float, shapes: list[Workload] = SHAPES) -> dict[str, Any]:
    """A whole run whose rounds take the time that they get: shares, what was told, what is left.

    Args:
        pace: Seconds of a sample, by work.
    """
    clock, told, shares = Clock(), list[str](), {}
    table = Timetable(seconds, {w.id: work(w) for w in shapes}, told.append, clock)

    def run(_: Arm, workload: Workload) -> Outcome:
        clock.now += pace * work(workload)
        return outcome(workload, 1.0)

    for workload in shapes:
        if table.admits(workload):
            cells = warm_up(workload, [A, B], partial(run, workload=workload), clock=clock)
            shares[workload.id] = share = table.share(workload, cells)
            clock.now += max(share, 2 * pace * work(workload))
    return {"shares": shares, "told": told, "without": table.without, "end": clock.now}


def needed(pace: float, workload: Workload, arms: int = 2) -> float:
    """Warm-up and three rounds of two turns of each arm."""
    return 7 * arms * pace * work(workload)


def test_a_run_with_time_for_all_verdicts_shares_out_the_rest() -> None:
    pace = 5e-4
    found = times(60, pace)
    assert found["told"] == found["without"] == []
    assert found["end"] == pytest.approx(60)
    for workload in SHAPES:  # nearly as many rounds of each
        rounds = found["shares"][workload.id] / (2 * 2 * pace * work(workload))
        assert 3.5 <= rounds <= 5.5


def test_without_time_for_all_the_quick_ones_get_a_verdict() -> None:
    pace = 1e-3
    slow, quick = SHAPES[2], [w for w in SHAPES if w.batch != 4 or w.context == 64]
    assert needed(pace, slow) > 60 > sum(needed(pace, w) for w in quick)
    found = times(60, pace)
    assert found["without"] == [slow.id]
    for workload in quick:  # three rounds at least
        assert found["shares"][workload.id] >= 6 * 2 * pace * work(workload)
    assert found["end"] <= 60 * 1.001
    (said,) = found["told"]
    seconds = sum(needed(pace, w) for w in SHAPES)
    assert said == (
        f"A verdict for all 4 workloads needs about {math.ceil(seconds)} s; --time is "
        "60 s, which is enough for 64x1, 64x4, 64x8, and the rest is left to --resume. "
        f"--time {math.ceil(1.2 * seconds / 10) * 10} would do, which is 20% more as a reserve."
    )


def test_without_time_for_one_verdict_the_first_is_measured_alone() -> None:
    for seconds in (0, 5):
        found = times(seconds, 0.1)
        assert found["without"] == [w.id for w in SHAPES[1:]]
        assert found["shares"]["64x1"] <= 5
        (said,) = found["told"]
        assert "which is not enough for one: 64x1 alone is measured, without a verdict." in said


@pytest.mark.parametrize(
    ("pace", "end", "said"),
    [
        (1e-4, 120, None),
        (2e-3, 2 * sum(needed(2e-3, w) for w in SHAPES), "this run goes on for up to"),
        (10e-3, 600, "ends after 600 s (10 minutes), which is enough for 64x1, 64x4"),
    ],
)
def test_a_run_that_nobody_limited_takes_what_verdicts_need(
    pace: float, end: float, said: str | None
) -> None:
    found = times(None, pace)
    assert found["end"] <= end * 1.001
    assert found["end"] >= (0.8 if said else 0.99) * min(end, 600)
    assert [said in text for text in found["told"] if said] == [True] * (said is not None)
    assert bool(found["without"]) == (pace == 10e-3)


@pytest.mark.parametrize("seconds", [None, 80])
def test_what_is_slower_than_it_seemed_gets_more_time_or_is_told(seconds: float | None) -> None:
    clock, told = Clock(), list[str]()
    shapes = [SHAPES[0], SHAPES[1], SHAPES[3]]
    table = Timetable(seconds, {w.id: work(w) for w in shapes}, told.append, clock)
    for workload, pace in zip(shapes, (0.01, 0.06, 0.06), strict=True):
        if table.admits(workload):
            cell = Cell(A, warm_up=pace * work(workload))
            clock.now += cell.warm_up
            clock.now += table.share(workload, [cell])
    changed = [text for text in told if text.startswith("64x8: all takes longer than it seemed")]
    assert (len(changed), table.without) == ((1, ["64x8"]) if seconds else (0, []))
    assert (80 if seconds else 300) <= clock.now <= (80 if seconds else 600)


def test_a_workload_that_no_arm_can_run_says_nothing_of_the_others() -> None:
    clock, told = Clock(), list[str]()
    table = Timetable(30, {w.id: work(w) for w in SHAPES}, told.append, clock)
    cells = warm_up(SHAPES[0], [A, B], clock.run, unfit={"A": "too large", "B": "too large"})
    assert clock.now == 0
    assert table.share(SHAPES[0], cells) == 0
    assert table.admits(SHAPES[1])
    assert told == []


def test_durations_in_words() -> None:
    said = [in_words(s) for s in (0, 4.2, 99, 100, 290, 5930, 12000)]
    assert said == ["1 s", "5 s", "99 s", "2 minutes", "5 minutes", "99 minutes", "3 h 20 min"]


def test_durations_in_the_unit_of_the_option() -> None:
    said = [in_seconds(s) for s in (4.2, 954, 12000)]
    assert said == ["5 s", "960 s (16 minutes)", "12000 s (3 h 20 min)"]


def test_arms_that_do_not_fit_are_not_run() -> None:
    calls = []

    def run(arm: Arm) -> Outcome:
        calls.append(arm.id)
        return outcome(WORKLOAD, 1.0)

    cells = warm_up(WORKLOAD, [A, B, forced(64)], run, unfit={"A": "too large", "P64": "larger"})
    assert calls == ["B"]
    assert [cell.invalid for cell in cells] == ["too large", "", "larger"]
    assert not any(cell.failed for cell in cells)


def test_it_ends_when_intervals_are_narrow() -> None:
    noise = Noise(0, jitter=0.001, stalls=0)
    cells = measured(
        WORKLOAD, [A, B], lambda _: outcome(WORKLOAD, noise()), patience(30, precision=0.02), 0
    )
    assert 8 <= len(cells[0].samples) < 60


def test_every_arm_is_warmed_up_before_any_is_measured() -> None:
    calls = []

    def run(arm: Arm) -> Outcome:
        calls.append(arm.id)
        return outcome(WORKLOAD, 1.0)

    measured(WORKLOAD, [A, B], run, THREE, 0)
    assert calls[:2] == ["A", "B"]
    assert len(calls) == 2 + 2 * 2 * FEWEST_ROUNDS


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"dispatch": {"kernel": "native-cpu", "partition": 256}}, "native-cpu ran with 256"),
        ({"cannot_force": "cannot force here: no library"}, "cannot force here: no library"),
    ],
)
def test_a_partition_that_did_not_run_is_invalid(told: dict[str, Any], why: str) -> None:
    base, cell = measured(
        WORKLOAD, [A, forced(512)], lambda _: outcome(WORKLOAD, 1.0, told), THREE, 0
    )
    assert not base.invalid
    assert why in cell.invalid
    assert not cell.samples
    ran = {"dispatch": {"kernel": "native-cpu", "partition": 512}}
    _, cell = measured(WORKLOAD, [A, forced(512)], lambda _: outcome(WORKLOAD, 1.0, ran), THREE, 0)
    assert not cell.invalid


def test_an_arm_that_does_other_work_is_invalid() -> None:
    shorter = Workload(60, 2, 4)

    def run(arm: Arm) -> Outcome:
        return outcome(WORKLOAD if arm is A else shorter, 1.0)

    _, cell = measured(WORKLOAD, [A, B], run, THREE, 0)
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

    base, cell = measured(WORKLOAD, [A, B], run, THREE, 0)
    assert str(error).rstrip(".") in cell.invalid
    assert len(base.samples) == 2 * FEWEST_ROUNDS


def test_outputs_are_compared_token_for_token() -> None:
    def run(arm: Arm) -> Outcome:
        return outcome(WORKLOAD, 1.0, token=7 if arm is A else 8)

    _, cell = measured(WORKLOAD, [A, B], run, THREE, 0)
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
    cells = measured(
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
    assert named[0].id == "pamx, KV float16, pages of 8"
    assert len(named) == 4


def test_other_work_in_a_later_sample_is_invalid() -> None:
    short = Workload(64, 2, 7)
    calls = Counter[str]()

    def run(arm: Arm) -> Outcome:
        calls[arm.id] += 1
        return outcome(short if arm is B and calls["B"] == 3 else WORKLOAD, 1.0)

    base, cell = measured(WORKLOAD, [A, B], run, THREE, 0)
    assert not base.invalid
    assert "7 of 8 tokens" in cell.invalid


def test_the_failure_of_the_base_names_the_workload() -> None:
    def run(_: Arm) -> Outcome:
        raise ProgramError("pamx's engine was ended by signal 9.", "Take a smaller batch.")

    with pytest.raises(ProgramError, match=r"64x2: pamx's engine .* Take a smaller batch"):
        measured(WORKLOAD, [A, B], run, THREE, 0)


def test_a_missed_precision_is_told() -> None:
    noise = Noise(0)
    cells = measured(WORKLOAD, [A, B], lambda _: outcome(WORKLOAD, noise()), THREE, 0)
    (warning,) = imprecise(cells, WORKLOAD, 1e-6, DECISIVE)
    assert warning.startswith("64x2: the time was over")
    assert not imprecise(cells, WORKLOAD, 1e6, DECISIVE)


def test_the_most_samples_are_not_called_too_little_time() -> None:
    noise = Noise(0)
    cells = measured(WORKLOAD, [A, B], lambda _: outcome(WORKLOAD, noise()), patience(5), 0)
    (warning,) = imprecise(cells, WORKLOAD, 1e-6, DECISIVE, 5)
    assert "after 10 samples of each arm, the most" in warning
    assert "--time" not in warning
    (warning,) = imprecise(cells, WORKLOAD, 1e-6, DECISIVE, 6)
    assert "the time was over" in warning
