"""Summaries, bootstrap intervals, paired comparison and drift, of samples in seconds or rates.

Centres are 20 % trimmed means, because a busy machine slows single samples down by a lot, and
intervals are symmetric studentised bootstrap intervals of them (R. R. Wilcox, Introduction to
Robust Estimation and Hypothesis Testing, section 4.4, with Yuen's standard error). With the few
repetitions that a benchmark has time for, the plain percentile interval is too narrow and calls
equal arms different too often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

# Of a mean, for people to read; and of a ratio, which decides whether two arms are called
# different. A sweep asks that of dozens of pairs, so the level is high.
MEAN_LEVEL, RATIO_LEVEL = 0.95, 0.99
RESAMPLES = 4000
TRIM = 0.2
# Of fewer values nothing is cut off: what is left would tell too little of the spread.
FEWEST_TO_TRIM = 12
# Fewer samples or pairs say nothing: a resample of so few is too often nearly a single value.
FEWEST = 6
# An interval around 1 whose ends lie further apart than this factor says nothing either.
WIDEST = 10.0
TOO_FEW, SAME = "too few samples", "no difference detected"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Of pooled values; `sd` is None for a single one."""

    n: int
    mean: float
    sd: float | None
    min: float
    p50: float
    p90: float
    p99: float
    max: float


def summarise(values: Sequence[float]) -> Summary:
    """Percentiles with linear interpolation, sample standard deviation.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("no values to summarise")
    array = np.asarray(values, np.float64)
    p50, p90, p99 = (float(np.percentile(array, q, method="linear")) for q in (50, 90, 99))
    sd = float(array.std(ddof=1)) if len(array) > 1 else None
    return Summary(
        len(array), float(array.mean()), sd, float(array.min()), p50, p90, p99, float(array.max())
    )


@dataclass(frozen=True)
class Centre:
    """A trimmed mean and its interval."""

    value: float
    low: float
    high: float


def centre(values: Sequence[float], level: float = MEAN_LEVEL, seed: int = 0) -> Centre | None:
    """The trimmed mean with its interval; None for fewer than FEWEST values.

    Values that are all equal give an interval of no width.
    """
    array = np.asarray(values, np.float64)
    if len(array) < FEWEST:
        return None
    means, errors = _trimmed(array[None])
    mean, error = float(means[0]), float(errors[0])
    tiny = 1e-12 * max(1.0, abs(mean))
    half = 0.0
    if error > tiny:
        rng = np.random.default_rng(seed)
        resampled = array[rng.integers(0, len(array), (RESAMPLES, len(array)))]
        half = error * _critical(*_trimmed(resampled), mean, tiny, level)
    return Centre(mean, mean - half, mean + half)


def typical(values: Sequence[float]) -> Centre | None:
    """The same for positive figures, on their logarithms: an interval never reaches below 0."""
    found = centre(np.log(np.asarray(values, np.float64)).tolist())
    if found is None:
        return None
    return Centre(*(float(np.exp(v)) for v in (found.value, found.low, found.high)))


def _trimmed(rows: Floats) -> tuple[Floats, Floats]:
    """[rows]: trimmed means and their standard errors, from the winsorised variance."""
    count = rows.shape[1]
    cut = int(TRIM * count) if count >= FEWEST_TO_TRIM else 0
    ordered = np.sort(rows, axis=1)
    kept = ordered[:, cut : count - cut]
    winsorised = np.clip(ordered, kept[:, :1], kept[:, -1:])
    errors: Floats = winsorised.std(axis=1, ddof=1) * np.sqrt(count) / (count - 2 * cut)
    return kept.mean(axis=1), errors


def _critical(means: Floats, errors: Floats, mean: float, tiny: float, level: float) -> float:
    """How many standard errors the interval reaches to each side."""
    told = errors > tiny  # a resample that draws one value only says nothing of its spread
    quantile = float(np.quantile(np.abs(means[told] - mean) / errors[told], level))
    # Never narrower than the normal interval: few values can hide their spread from a bootstrap.
    return max(quantile, NormalDist().inv_cdf((1 + level) / 2))


@dataclass(frozen=True)
class Ratio:
    """How much faster an arm is than the base: `ratio` 1.1 is 10 % faster.

    Attributes:
        ratio: exp of the trimmed mean of paired differences of logarithms.
        low, high: Its interval.
        pairs: How many pairs.
    """

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def differs(self) -> bool:
        return not self.low <= 1 <= self.high


def paired_ratio(
    base: Sequence[float], arm: Sequence[float], *, smaller_is_better: bool, seed: int = 0
) -> Ratio | None:
    """Compares samples that were taken in pairs; None for fewer than FEWEST.

    Args:
        base, arm: Positive figures; base[i] and arm[i] were measured close to each other.
        smaller_is_better: Whether they are times rather than rates.
    """
    if len(base) != len(arm):
        raise ValueError(f"{len(base)} samples of the base and {len(arm)} of the arm are no pairs")
    if len(base) < FEWEST:
        return None
    logs: Floats = np.log(np.asarray(arm, np.float64)) - np.log(np.asarray(base, np.float64))
    if smaller_is_better:
        logs = -logs
    found = centre(logs.tolist(), RATIO_LEVEL, seed)
    assert found is not None
    ratio, low, high = (float(np.exp(v)) for v in (found.value, found.low, found.high))
    return Ratio(ratio, low, high, len(logs))


def independent_ratio(
    base: Sequence[float], arm: Sequence[float], *, smaller_is_better: bool, seed: int = 0
) -> Ratio | None:
    """Compares samples of two runs, which nothing pairs; None for too few."""
    if min(len(base), len(arm)) < FEWEST:
        return None
    x, y = (np.log(np.asarray(v, np.float64)) for v in (base, arm))
    if smaller_is_better:
        x, y = -x, -y
    (mean,), (error,) = _difference(x[None], y[None])
    half = 0.0
    if error > 1e-12:
        rng = np.random.default_rng(seed)
        xs = x[rng.integers(0, len(x), (RESAMPLES, len(x)))]
        ys = y[rng.integers(0, len(y), (RESAMPLES, len(y)))]
        half = error * _critical(*_difference(xs, ys), mean, 1e-12, RATIO_LEVEL)
    ratio, low, high = (float(np.exp(v)) for v in (mean, mean - half, mean + half))
    return Ratio(ratio, low, high, len(x) + len(y))


def _difference(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """[rows]: differences of trimmed means, and their standard errors."""
    (x_means, x_errors), (y_means, y_errors) = _trimmed(x), _trimmed(y)
    return y_means - x_means, np.hypot(x_errors, y_errors)


def verdict(found: Ratio | None) -> str:
    """In words, whether a comparison shows a difference."""
    if found is None:
        return TOO_FEW
    if not found.differs:
        return SAME if found.high <= WIDEST * found.low else TOO_FEW
    return "faster" if found.ratio > 1 else "slower"


@dataclass(frozen=True)
class Drift:
    """How a figure changed in the course of a measurement.

    Attributes:
        change: Relative change from the first sample to the last, along a fitted line.
        marked: Whether that is both more than noise and large enough to matter.
    """

    change: float
    marked: bool


_MARKED_CHANGE, _MARKED_T = 0.05, 4.0


def drift(values: Sequence[float]) -> Drift | None:
    """Fits a line to the logarithms of samples in the order in which they were taken.

    None for fewer than six.
    """
    count = len(values)
    if count < 6:
        return None
    x = np.linspace(-0.5, 0.5, count)
    y = np.log(np.asarray(values, np.float64))
    slope = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - slope * x
    error = float(np.sqrt((rest * rest).sum() / (count - 2) / (x * x).sum()))
    change = float(np.expm1(slope))
    return Drift(change, abs(change) > _MARKED_CHANGE and abs(slope) > _MARKED_T * error)
