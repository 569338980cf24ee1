"""Goodput and percentiles of a replay, computed once more from its raw times by other means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from pamx.bench.measure import Cell, take_sample
from pamx.bench.program import Outcome
from pamx.bench.results import cell_record
from pamx.bench.slo import limits
from pamx.bench.timing import RequestTiming, sample_figures
from pamx.bench.workload import Arm, Workload


def recomputed(requests: list[dict[str, Any]]) -> tuple[pd.DataFrame, pd.Series[float]]:
    """TTFT, E2E and TPOT of each request, and the gaps of all."""
    figures, gaps = [], []
    for request in requests:
        times = np.array(request["times"])
        ttft, e2e = times[0] - request["submitted"], times[-1] - request["submitted"]
        tpot = (e2e - ttft) / (len(times) - 1) if len(times) > 1 else None
        figures.append({"ttft": ttft, "e2e": e2e, "tpot": tpot})
        gaps += list(np.diff(times))
    return pd.DataFrame(figures), pd.Series(gaps)


def test_percentiles_and_goodput_are_those_of_the_raw_times() -> None:
    rng = np.random.default_rng(4)
    timings = []
    for at in np.cumsum(rng.exponential(0.3, 250)):
        count = int(rng.integers(1, 30))  # some have one token, and no TPOT
        times = at + rng.lognormal(-1, 1) + np.cumsum(rng.exponential(0.02, count))
        timings.append(RequestTiming(float(at), tuple(float(t) for t in times), 50))
    cell = Cell(Arm("pamx", "pamx"))
    take_sample(cell, Outcome(timings, sample_figures(timings), None, 99.0, {}), 0, 0, 0.0)
    found = cell_record(cell, Workload(80, 16, 30), limits("ttft=600ms,tpot=21ms,e2e=1s"))

    requests = found["samples"][0]["requests"]
    frame, gaps = recomputed(requests)
    assert 0 < frame.tpot.isna().sum() < 30
    for name, values in [*frame.items(), ("itl", gaps)]:
        summary, told = found["requests"][str(name)], values.dropna().astype(float)
        assert summary["n"] == len(told)
        for p in (50, 90, 99):
            assert summary[f"p{p}"] == pytest.approx(told.quantile(p / 100, "linear"))
        assert summary["mean"] == pytest.approx(told.mean())
        assert summary["sd"] == pytest.approx(told.std(ddof=1))
        assert (summary["min"], summary["max"]) == pytest.approx((told.min(), told.max()))
    met = (frame.ttft <= 0.6) & (frame.e2e <= 1) & ~(frame.tpot > 0.021)
    assert 20 < met.sum() < 230
    last = max(r["times"][-1] for r in requests)
    first = min(r["submitted"] for r in requests)
    assert found["goodput"] == pytest.approx(met.sum() / (last - first))
