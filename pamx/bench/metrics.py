"""The figures that a sample has: their names, units and directions, in the order of tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """`unit` is "s", "tokens/s" or "bytes/s"."""

    name: str
    title: str
    unit: str

    @property
    def smaller_is_better(self) -> bool:
        return self.unit == "s"


TTFT = Metric("ttft", "TTFT", "s")
TPOT = Metric("tpot", "TPOT", "s")
E2E = Metric("e2e", "E2E", "s")
PROMPT = Metric("prompt_throughput", "prompt tok/s", "tokens/s")
OUTPUT = Metric("output_throughput", "output tok/s", "tokens/s")
USER = Metric("user_speed", "tok/s per user", "tokens/s")
CALL = Metric("call", "call", "s")
BANDWIDTH = Metric("bandwidth", "bandwidth", "bytes/s")

OF_REQUESTS = (TTFT, TPOT, E2E, PROMPT, OUTPUT, USER)
OF_CALLS = (CALL, BANDWIDTH)
# User speed is TPOT upside down: comparing both would say the same twice.
COMPARED = (TTFT, TPOT, E2E, PROMPT, OUTPUT)
# What must be known narrowly enough before a measurement ends.
DECISIVE = (TTFT, TPOT, OUTPUT)
