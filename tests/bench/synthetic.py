"""Measurements of nothing: timings drawn with a shared machine's noise, and records of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pamx.bench.measure import Cell, Patience, measure, warm_up
from pamx.bench.metrics import DECISIVE, Metric
from pamx.bench.program import Outcome
from pamx.bench.provenance import provenance
from pamx.bench.record import Record, new_record
from pamx.bench.results import cell_record, comparison_records, measurement_warnings
from pamx.bench.sweep import ModelChoice, SweepPlan
from pamx.bench.timing import RequestTiming, sample_figures
from pamx.bench.workload import Arm, Workload, arms, workloads

MODEL: dict[str, Any] = {
    "name": "tiny",
    "path": "/models/tiny",
    "commit": None,
    "sha256": {"model.safetensors": "00"},
    "quantization": {"bits": 4, "group_size": 32},
    "compute": "fast",
    "attention": "native-cpu",
}


MACHINE: dict[str, Any] = {
    "chip": "Example CPU",
    "arch": "x86_64",
    "system": "Linux 6.1",
    "physical_cores": 4,
    "logical_cores": 8,
    "usable_cpus": 4,
    "memory_bytes": 16_000_000_000,
    "cache_bytes": 32 << 20,
}


class Noise:
    """Factors near 1 by which a shared machine is slower: jitter, rare stalls, and a slow walk."""

    def __init__(self, seed: int, jitter: float = 0.02, stalls: float = 0.05) -> None:
        self._rng = np.random.default_rng(seed)
        self._jitter, self._stalls = jitter, stalls
        self._walk = 0.0

    def __call__(self) -> float:
        self._walk += self._rng.normal(0, 0.004)
        stalled = self._rng.random() < self._stalls
        stall = self._rng.exponential(0.15) if stalled else 0.0
        return float(np.exp(self._walk + self._rng.normal(0, self._jitter) + stall))


def outcome(
    workload: Workload, slowness: float, told: dict[str, Any] | None = None, token: int = 7
) -> Outcome:
    """What a program would answer: 1 ms a prompt token, 10 ms an output token, times slowness."""
    first = workload.prompt_tokens * workload.batch * 1e-3
    times = [(first + i * 10e-3) * slowness for i in range(workload.output_tokens)]
    requests = [RequestTiming(0.0, tuple(times), workload.prompt_tokens)] * workload.batch
    tokens = [[token] * workload.output_tokens for _ in requests]
    about = {"pages": 4, "pool_bytes": 1 << 20, "peak_memory_bytes": 250_000_000}
    about |= {"peak_memory_of": "resident memory of the process"}
    about |= {"dispatch": {"kernel": "native-cpu", "partition": 256, "calls": {"native-cpu": 9}}}
    figures = sample_figures(requests)
    return Outcome(requests, figures, tokens, times[-1], about | (told or {}))


def patience(rounds: int, precision: float = 1e-9) -> Patience:
    """Ends after this many rounds."""
    return Patience(math.inf, precision, most_rounds=rounds)


Run = Callable[[Arm], Outcome]


def measured(
    workload: Workload,
    arms: Sequence[Arm],
    run: Run,
    patience: Patience,
    seed: int,
    decisive: Sequence[Metric] = DECISIVE,
) -> list[Cell]:
    """Warmed up, then measured."""
    cells = warm_up(workload, arms, run, clock=patience.clock)
    measure(cells, workload, run, patience, seed, decisive=decisive)
    return cells


def synthetic_record(
    contexts: Sequence[int] = (256, 1024),
    batches: Sequence[int] = (1, 4),
    partitions: Sequence[int | None] = (None, 512),
    speeds: dict[str, float] | None = None,
    limits: dict[str, float] | None = None,
    seed: int = 3,
    others: Sequence[str] = ("mlx-lm",),
    rounds: int = 5,
) -> Record:
    """A sweep as it would be recorded.

    Args:
        speeds: How much slower than others an arm is, by its id.
        others: What else is measured.
        rounds: Of which each gives two samples of every arm.
    """
    chosen = arms(partitions, [16], ["auto"], others, control=True)
    shapes = workloads(contexts, batches, 8)
    plan = SweepPlan(ModelChoice("tiny"), shapes, chosen, 60.0, 0.03, seed, limits or {})
    record = new_record("sweep", provenance(["pamx", "bench"], seed, {}), plan.as_json())
    record["provenance"] |= {"model": MODEL, "library": {"build_hash": "ab"}, "programs": {}}
    record["provenance"] |= {"machine": MACHINE}
    for number, workload in enumerate(shapes):
        noise = Noise(seed + number)

        def run(arm: Arm, workload: Workload = workload, noise: Noise = noise) -> Outcome:
            told = {}
            if partition := arm.settings.get("partition"):
                told = {"dispatch": {"kernel": "native-cpu", "partition": partition, "calls": {}}}
            if arm.kind == "mlx-lm":
                told = {"dispatch": {"kernel": "mlx-lm, dense cache", "partition": None}}
            slow = (speeds or {}).get(arm.id, 1.0)
            token = 8 if arm.kind == "mlx-lm" and workload.batch > 1 else 7
            return outcome(workload, slow * noise(), told, token)

        cells = measured(workload, chosen, run, patience(rounds), seed)
        add(record, cells, workload, limits or {})
    record["complete"] = True
    return record


def add(record: Record, cells: list[Cell], workload: Workload, limits: dict[str, float]) -> None:
    for cell in cells:
        record["cells"].append(cell_record(cell, workload, limits))
    comparisons = comparison_records(cells, workload, record["plan"]["precision"])
    record["comparisons"] += comparisons
    record["warnings"] += measurement_warnings(cells, comparisons, workload)
