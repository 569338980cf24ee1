"""The figures that a sample has: their names, units and directions, in the order of tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """`unit` is "s" or "tokens/s"."""

    name: str
    title: str
    unit: str

    @property
    def smaller_is_better(self) -> bool:
        return self.unit == "s"


METRICS = (
    Metric("ttft", "TTFT", "s"),
    Metric("tpot", "TPOT", "s"),
    Metric("e2e", "E2E", "s"),
    Metric("prompt_throughput", "prompt tok/s", "tokens/s"),
    Metric("output_throughput", "output tok/s", "tokens/s"),
    Metric("user_speed", "tok/s per user", "tokens/s"),
)
# User speed is TPOT upside down: comparing both would say the same twice.
COMPARED = METRICS[:5]
# What must be known narrowly enough before a measurement ends.
DECISIVE = ("ttft", "tpot", "output_throughput")
