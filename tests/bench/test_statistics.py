"""Intervals and verdicts: against SciPy, and over simulated experiments with a shared machine's
noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from pamx.bench.measure import Cell
from pamx.bench.metrics import E2E
from pamx.bench.program import Outcome
from pamx.bench.statistics import (
    FEWEST,
    Ratio,
    centre,
    drift,
    equality_margin,
    independent_ratio,
    paired_ratio,
    students,
    summarise,
    typical,
    verdict,
    verdict_between_runs,
)
from pamx.bench.workload import Arm, Workload

from .synthetic import Noise, measured, patience

WORKLOAD = Workload(64, 1, 8)


def test_summaries_agree_with_numpy_and_scipy() -> None:
    values = np.random.default_rng(0).lognormal(0, 1, 101).tolist()
    found = summarise(values)
    assert found.mean == pytest.approx(scipy.stats.tmean(values))
    assert found.sd == pytest.approx(scipy.stats.tstd(values))  # n - 1
    for q, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert value == pytest.approx(np.quantile(values, q / 100))
    assert summarise([1.0, 2.0]).p50 == pytest.approx(1.5)  # linear interpolation
    assert summarise([5.0]).sd is None


@pytest.mark.parametrize(("count", "carried"), [(9, []), (10, ["p90"]), (100, ["p90", "p99"])])
def test_a_percentile_needs_a_value_beyond_it(count: int, carried: list[str]) -> None:
    found = summarise([float(v) for v in range(count)])
    assert [name for name in ("p90", "p99") if getattr(found, name) is not None] == carried


@pytest.mark.parametrize("count", [6, 7, 10, 23, 100])
def test_the_centre_is_scipys_trimmed_mean(count: int) -> None:
    values = np.random.default_rng(count).lognormal(0, 0.3, count).tolist()
    found = centre(values)
    assert found is not None
    trimmed = 0.2 if count >= 12 else 0.0
    assert found.value == pytest.approx(scipy.stats.trim_mean(values, trimmed))
    assert found.low < found.value < found.high


def test_a_large_sample_has_nearly_yuens_interval() -> None:
    values = np.random.default_rng(1).normal(10, 1, 400)
    found = centre(values.tolist())
    assert found is not None
    yuen = scipy.stats.mstats.trimmed_mean_ci(values, (0.2, 0.2), alpha=0.05)
    assert (found.low, found.high) == pytest.approx(tuple(yuen), abs=0.03)


def test_intervals_of_positive_figures_stay_positive() -> None:
    found = typical([0.1, 0.2, 1.7, 0.1, 0.1, 5.0])
    assert found is not None
    assert 0 < found.low < found.value < found.high


def test_equal_values_have_no_width_and_few_values_no_interval() -> None:
    found = centre([2.0] * 6)
    assert found is not None
    assert (found.low, found.high) == (2.0, 2.0)
    assert centre([1.0] * (FEWEST - 1)) is None


MARGIN = 0.06


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Ratio(1.0, 0.97, 1.03, 10), "no difference detected"),
        (Ratio(1.0, 0.941, 1.059, 10), "no difference detected"),
        (Ratio(1.0, 0.93, 1.03, 10), "cannot tell"),
        (Ratio(1.03, 0.45, 2.36, 10), "cannot tell"),
        (Ratio(1.08, 0.0, math.inf, 10), "cannot tell"),
        (Ratio(3.0, 1.2, 7.5, 6), "faster"),
        (Ratio(0.99, 0.98, 0.999, 6), "slower"),
        (Ratio(1.8, 0.0, math.inf, FEWEST - 1), "too few samples"),
    ],
)
def test_a_wide_interval_is_no_equality(found: Ratio, said: str) -> None:
    assert verdict(found, MARGIN) == said


def test_the_margin_follows_the_precision() -> None:
    assert equality_margin(0.03) == pytest.approx(0.06)
    assert equality_margin(0.5) == 0.10
    # An interval that includes 1 and is as narrow as was asked for means no difference.
    for ratio in (0.971, 1.0, 1.029):
        found = Ratio(ratio, ratio * 0.97, ratio * 1.03, 8)
        assert not found.differs
        assert verdict(found, equality_margin(0.03)) == "no difference detected"


@pytest.mark.parametrize("compared", [paired_ratio, independent_ratio])
def test_too_few_samples_have_a_ratio_all_the_same(compared: Any) -> None:
    found = compared([2.0, 2.2], [1.0, 1.1], smaller_is_better=True)
    assert found.ratio == pytest.approx(2)
    assert found.pairs == 2
    assert not found.bounded
    assert compared([], [], smaller_is_better=True) is None


def test_one_far_value_among_few_does_not_make_the_interval_explode() -> None:
    logs = [0.0, 1e-4, -1e-4, 2e-4, -2e-4, 0.3]
    found = centre(logs)
    assert found is not None
    yuen = scipy.stats.t.ppf(0.975, 5) * scipy.stats.sem(logs)
    assert found.high - found.value <= 1.5 * yuen * 1.001
    # What no computer can hold is no interval either.
    wild = typical([1e-12, 1.0, 1e12] * 3)
    assert wild is not None
    assert not wild.bounded


@pytest.mark.parametrize("level", [0.95, 0.99])
@pytest.mark.parametrize("freedom", [5, 7, 30])
def test_students_quantile_is_scipys(level: float, freedom: int) -> None:
    normal = scipy.stats.norm.ppf((1 + level) / 2)
    exact = scipy.stats.t.ppf((1 + level) / 2, freedom)
    assert students(normal, freedom) == pytest.approx(exact, rel=1e-3)


def test_direction() -> None:
    slow, fast = [2.0, 2.02, 1.98, 2.01, 2.0, 1.99], [1.0, 1.01, 1.0, 0.99, 1.0, 1.0]
    time = paired_ratio(slow, fast, smaller_is_better=True)
    rate = paired_ratio(slow, fast, smaller_is_better=False)
    assert time is not None
    assert rate is not None
    assert time.ratio == pytest.approx(2, rel=0.02)
    assert verdict(time, MARGIN) == "faster"
    assert rate.ratio == pytest.approx(0.5, rel=0.02)
    assert verdict(rate, MARGIN) == "slower"
    apart = independent_ratio(slow, fast, smaller_is_better=True)
    assert apart is not None
    assert verdict(apart, MARGIN) == "faster"


def experiment(seed: int, slowdown: float, rounds: int) -> str:
    """The verdict about B against A after a whole measurement, rounds and all."""
    noise = Noise(seed)

    def run(arm: Arm) -> Outcome:
        seconds = 0.5 * noise() * (slowdown if arm.id == "B" else 1.0)
        return Outcome([], {"e2e": seconds}, None, seconds, {})

    a, b = measured(
        WORKLOAD,
        [Arm("A", "pamx"), Arm("B", "pamx")],
        run,
        patience(rounds, precision=0.03),
        seed,
        decisive=(E2E,),
    )
    found = paired_ratio(a.figures("e2e"), b.figures("e2e"), smaller_is_better=True)
    assert found is not None
    return verdict(found, MARGIN)


def test_equal_arms_are_not_called_different() -> None:
    verdicts = [experiment(seed, 1.0, rounds=3 + seed % 8) for seed in range(100)]
    assert sum(found in ("faster", "slower") for found in verdicts) <= 5
    assert verdicts.count("no difference detected") >= 50  # of three rounds many say too little


def test_a_slowdown_of_a_tenth_is_detected() -> None:
    verdicts = [experiment(seed, 1.1, rounds=10) for seed in range(1000, 1100)]
    assert verdicts.count("slower") >= 95
    assert verdicts.count("faster") == 0


def between_runs(seed: int, slowdown: float, rounds: int) -> str:
    """The verdict about a run B against A of the same, each with a drift and a speed of its own."""
    rng = np.random.default_rng(seed)
    runs, controls = [], []
    for slow in (1.0, slowdown):
        noise = Noise(int(rng.integers(1 << 30)))
        own, drifted = np.exp(rng.normal(0, 0.03)), rng.normal(0, 0.04)
        first, control = [], []
        for at in np.linspace(-0.5, 0.5, 2 * rounds):
            for values in (first, control):
                values.append(0.5 * slow * own * math.exp(drifted * at) * noise())
        found = paired_ratio(first, control, smaller_is_better=True)
        assert found is not None
        controls.append(found.ratio)
        runs.append(first)
    ratio = independent_ratio(*runs, smaller_is_better=True, controls=controls)
    assert ratio is not None
    return verdict_between_runs(ratio, MARGIN)


@pytest.mark.parametrize("rounds", [4, 25])
def test_runs_of_the_same_are_not_called_different(rounds: int) -> None:
    verdicts = [between_runs(seed, 1.0, rounds) for seed in range(100)]
    assert sum(found in ("faster", "slower") for found in verdicts) <= 5


@pytest.mark.parametrize("rounds", [8, 25])
def test_a_run_slower_by_a_quarter_is_found(rounds: int) -> None:
    verdicts = [between_runs(seed, 1.25, rounds) for seed in range(100)]
    assert verdicts.count("slower") >= 80  # some machines drift by as much as a tenth
    assert verdicts.count("faster") == 0


def test_controls_that_lie_apart_widen_the_interval_of_two_runs() -> None:
    runs = [[0.5 * noise() for _ in range(16)] for noise in (Noise(1), Noise(2))]
    near = independent_ratio(*runs, smaller_is_better=True)
    far = independent_ratio(*runs, smaller_is_better=True, controls=[1.01, 0.8])
    assert near is not None
    assert far is not None
    assert far.ratio == near.ratio
    assert far.high / near.high == pytest.approx(1.25)
    assert near.low / far.low == pytest.approx(1.25)


def test_a_difference_between_runs_has_to_clear_the_margin() -> None:
    said = {
        (1.00009, 1.08): "cannot tell",
        (1.01, 1.05): "no difference detected",
        (1.07, 1.2): "faster",
        (0.8, 0.93): "slower",
    }
    for (low, high), words in said.items():
        assert verdict_between_runs(Ratio((low + high) / 2, low, high, 48), MARGIN) == words


def test_drift_is_marked_when_it_matters() -> None:
    rng = np.random.default_rng(2)
    steady = rng.normal(1, 0.01, 20)
    calm = drift(steady.tolist())
    assert calm is not None
    assert not calm.marked
    rising = steady * np.linspace(1, 1.2, 20)
    found = drift(rising.tolist())
    assert found is not None
    assert found.marked
    assert found.change == pytest.approx(0.2, abs=0.03)
    assert drift([1.0, 2.0]) is None


def test_samples_pair_up_by_block_and_half() -> None:
    cell = Cell(Arm("A", "pamx"))
    for block, half, value in ((1, 1, 4.0), (0, 0, 1.0), (1, 0, 3.0), (0, 1, 2.0)):
        cell.samples.append({"block": block, "half": half, "figures": {"e2e": value}})
    assert cell.figures("e2e") == [1.0, 2.0, 3.0, 4.0]
