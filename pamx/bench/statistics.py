"""Summaries, bootstrap intervals, paired comparison and drift, of samples in seconds or rates.

Centres are 20 % trimmed means, because a busy machine slows single samples down by a lot, and
intervals are symmetric studentised bootstrap intervals of them (R. R. Wilcox, Introduction to
Robust Estimation and Hypothesis Testing, section 4.4, with Yuen's standard error). With the few
repetitions that a benchmark has time for, the plain percentile interval is too narrow and calls
equal arms different too often; the studentised one explodes where one of a few values lies far off,
because some resamples miss it. So it is kept between the normal interval and WIDENED times Yuen's.
"""

from __future__ import annotations

import math
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
# Simulated experiments with a shared machine's noise call equal arms different no more often with
# this limit than without any, and find a slowdown of a tenth more often.
WIDENED = 1.5
# Of fewer values nothing is cut off: what is left would tell too little of the spread.
FEWEST_TO_TRIM = 12
# Fewer samples or pairs have no interval: a resample of so few is too often nearly a single value.
FEWEST = 6
# Of a single pair not even a ratio is told: nobody knows how far the next would lie from it.
FEWEST_WITH_RATIO = 2
# Of an interval, beyond which it says no more than "unknown", and a computer may not hold it.
LARGEST_LOG = math.log(1e6)
# A percentile needs a value beyond it: of fewer, it would be the largest one under another name.
FEWEST_FOR = {"p90": 10, "p99": 100}
# Of a run that is compared with another one: fewer would say too little of its spread, and more,
# each of them shorter, would be too much like their neighbours.
PARTS = 8
MOST_ALIKE = 0.8
# Nobody who asks for less precision than this means that such a difference is none.
LARGEST_MARGIN = 0.10
# Processes that do the same differ by a few per cent for as long as they live (layout of memory,
# neighbours on the machine), however narrow the intervals are.
LEAST_MARGIN_BETWEEN_RUNS = 0.06
FASTER, SLOWER = "faster", "slower"
SAME, UNKNOWN, TOO_FEW = "no difference detected", "cannot tell", "too few samples"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Of pooled values; `sd` is None for a single one, a percentile for fewer than FEWEST_FOR."""

    n: int
    mean: float
    sd: float | None
    min: float
    p50: float
    p90: float | None
    p99: float | None
    max: float


def summarise(values: Sequence[float]) -> Summary:
    """Percentiles with linear interpolation, sample standard deviation.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("no values to summarise")
    array = np.asarray(values, np.float64)
    n = len(array)
    p50, p90, p99 = (float(np.percentile(array, q, method="linear")) for q in (50, 90, 99))
    return Summary(
        n,
        float(array.mean()),
        float(array.std(ddof=1)) if n > 1 else None,
        float(array.min()),
        p50,
        p90 if n >= FEWEST_FOR["p90"] else None,
        p99 if n >= FEWEST_FOR["p99"] else None,
        float(array.max()),
    )


@dataclass(frozen=True)
class Centre:
    """A trimmed mean and its interval."""

    value: float
    low: float
    high: float

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return self.high < math.inf


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
        half = error * _critical(*_trimmed(resampled), mean, tiny, level, _freedom(len(array)))
    return Centre(mean, mean - half, mean + half)


def typical(values: Sequence[float]) -> Centre | None:
    """The centre of positive figures, on their logarithms: an interval never reaches below 0.

    Of fewer than FEWEST it is the median. Where nothing is known of the interval, it reaches from 0
    to infinity. None for no values.
    """
    if not len(values):
        return None
    found = centre(np.log(np.asarray(values, np.float64)).tolist())
    if found is None:
        return Centre(float(np.median(values)), 0.0, math.inf)
    if found.high - found.value > LARGEST_LOG:
        return Centre(math.exp(found.value), 0.0, math.inf)
    return Centre(*(math.exp(v) for v in (found.value, found.low, found.high)))


def _trimmed(rows: Floats) -> tuple[Floats, Floats]:
    """[rows]: trimmed means and their standard errors, from the winsorised variance."""
    count = rows.shape[1]
    cut = _cut(count)
    ordered = np.sort(rows, axis=1)
    kept = ordered[:, cut : count - cut]
    winsorised = np.clip(ordered, kept[:, :1], kept[:, -1:])
    errors: Floats = winsorised.std(axis=1, ddof=1) * np.sqrt(count) / (count - 2 * cut)
    return kept.mean(axis=1), errors


def _cut(count: int) -> int:
    """How many of so many values are cut off at each end."""
    return int(TRIM * count) if count >= FEWEST_TO_TRIM else 0


def _freedom(count: int) -> int:
    """Yuen's degrees of freedom: of the values that are kept."""
    return count - 2 * _cut(count) - 1


def _critical(
    means: Floats, errors: Floats, mean: float, tiny: float, level: float, freedom: int
) -> float:
    """How many standard errors the interval reaches to each side."""
    told = errors > tiny  # a resample that draws one value only says nothing of its spread
    quantile = float(np.quantile(np.abs(means[told] - mean) / errors[told], level))
    # Few values can hide their spread from a bootstrap, or seem to have none but for one of them.
    normal = NormalDist().inv_cdf((1 + level) / 2)
    return min(max(quantile, normal), WIDENED * students(normal, freedom))


def students(normal: float, freedom: int) -> float:
    """Student's quantile for a quantile of the normal distribution.

    Source: M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, 26.7.5; within 1 %
    from 5 degrees of freedom on.
    """
    z = normal
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum((t / float(freedom**power) for power, t in enumerate(terms, 1)), 0.0)


@dataclass(frozen=True)
class Ratio:
    """How much faster an arm is than the base: `ratio` 1.1 is 10 % faster.

    Attributes:
        ratio: exp of the trimmed mean of paired differences of logarithms.
        low, high: Its interval; 0 and infinity where nothing is known of it.
        pairs: How many pairs; of two runs, samples of that with fewer.
    """

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def differs(self) -> bool:
        return not self.low <= 1 <= self.high

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return self.high < math.inf


def _ratio(log: float, half: float, pairs: int) -> Ratio:
    if pairs < FEWEST or half > LARGEST_LOG:
        return Ratio(math.exp(log), 0.0, math.inf, pairs)
    return Ratio(math.exp(log), math.exp(log - half), math.exp(log + half), pairs)


def paired_ratio(
    base: Sequence[float], arm: Sequence[float], *, smaller_is_better: bool, seed: int = 0
) -> Ratio | None:
    """Compares samples that were taken in pairs; None for none.

    Args:
        base, arm: Positive figures; base[i] and arm[i] were measured close to each other.
        smaller_is_better: Whether they are times rather than rates.
    """
    if len(base) != len(arm):
        raise ValueError(f"{len(base)} samples of the base and {len(arm)} of the arm are no pairs")
    if not len(base):
        return None
    logs: Floats = np.log(np.asarray(arm, np.float64)) - np.log(np.asarray(base, np.float64))
    if smaller_is_better:
        logs = -logs
    found = centre(logs.tolist(), RATIO_LEVEL, seed)
    if found is None:
        return _ratio(float(logs.mean()), 0.0, len(logs))
    return _ratio(found.value, found.high - found.value, len(logs))


def independent_ratio(
    base: Sequence[float],
    arm: Sequence[float],
    *,
    smaller_is_better: bool,
    controls: Sequence[float] = (),
) -> Ratio | None:
    """Compares samples of two runs, which nothing pairs; None if one has none.

    A run drifts, so that samples near each other are alike: its spread is that of the means of at
    most PARTS stretches of it (batch means, with Yuen's winsorising over the whole run), larger
    where they are still alike, times Student's quantile. How far the machine moved between the
    runs, two of them do not tell; that of equal arms in either run is the least that it can be, and
    widens the interval.

    Args:
        base, arm: Positive figures of either run, in the order in which they were measured.
        smaller_is_better: Whether they are times rather than rates.
        controls: Ratios of equal arms within the runs.
    """
    fewest = min(len(base), len(arm))
    if not fewest:
        return None
    x, y = (np.log(np.asarray(v, np.float64)) for v in (base, arm))
    if smaller_is_better:
        x, y = -x, -y
    if fewest < FEWEST:
        return _ratio(float(y.mean() - x.mean()), 0.0, fewest)
    apart = float(_trimmed(y[None])[0][0] - _trimmed(x[None])[0][0])
    xs, ys = _stretches(x), _stretches(y)
    error = math.hypot(_error(xs), _error(ys))
    normal = NormalDist().inv_cdf((1 + RATIO_LEVEL) / 2)
    half = error * students(normal, min(len(xs), len(ys)) - 1)
    half += max((abs(math.log(ratio)) for ratio in controls), default=0.0)
    return _ratio(apart, float(half), fewest)


def _stretches(values: Floats) -> Floats:
    """Means of consecutive winsorised values, as far apart as a trimmed mean's errors are."""
    cut, count = _cut(len(values)), len(values)
    ordered = np.sort(values)
    winsorised = np.clip(values, ordered[cut], ordered[count - 1 - cut])
    parts = np.array_split(winsorised, min(count, PARTS))
    return np.asarray([part.mean() for part in parts]) * (count / (count - 2 * cut))


def _error(stretches: Floats) -> float:
    """The standard error of their mean; as of an autoregressive process if neighbours are alike."""
    rest = stretches - stretches.mean()
    squares, count = float((rest * rest).sum()), len(rest)
    if squares <= 0:
        return 0.0
    correlation = min(max(float((rest[1:] * rest[:-1]).sum()) / squares, 0.0), MOST_ALIKE)
    return math.sqrt(squares / (count - 1) / count * (1 + correlation) / (1 - correlation))


def equality_margin(precision: float) -> float:
    """How far from 1 the interval of a ratio may reach if it is to mean "no difference".

    Twice the precision that a run is asked for: an interval that includes 1 and is as narrow as
    the run wants it lies within this.

    Args:
        precision: Half the width of an interval, relative, that is narrow enough.
    """
    return min(2 * precision, LARGEST_MARGIN)


def verdict(found: Ratio, margin: float) -> str:
    """In words, whether a comparison shows a difference.

    Args:
        found: The comparison.
        margin: Of `equality_margin`.
    """
    if found.pairs < FEWEST:
        return TOO_FEW
    if found.differs:
        return FASTER if found.ratio > 1 else SLOWER
    return SAME if 1 - margin <= found.low and found.high <= 1 + margin else UNKNOWN


def verdict_between_runs(found: Ratio, margin: float) -> str:
    """As `verdict`, of two runs: a difference has to be larger than the margin for sure."""
    if found.pairs < FEWEST:
        return TOO_FEW
    if found.low > 1 + margin:
        return FASTER
    if found.high < 1 - margin:
        return SLOWER
    return SAME if 1 - margin <= found.low and found.high <= 1 + margin else UNKNOWN


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
