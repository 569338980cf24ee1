"""The figures that a sample has: their names, units and directions, in the order of tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A figure.

    Attributes:
        name: In records.
        title: What people read: in tables, plots, definitions, and (see `column`) in CSV.
        unit: "s", "tokens/s" or "bytes/s".
    """

    name: str
    title: str
    unit: str

    def column(self, part: str = "") -> str:
        """Its column in flat rows, or that of a `part` of it, such as "low"."""
        suffix = {"s": "s", "bytes/s": "bytes_per_s"}.get(self.unit, "")
        return "_".join(word for word in (slug(self.title), part, suffix) if word)

    @property
    def smaller_is_better(self) -> bool:
        return self.unit == "s"


def slug(title: str) -> str:
    """A title as the name of a column: "user tok/s" is user_tok_per_s."""
    return title.lower().replace("/", "_per_").replace(" ", "_")


TTFT = Metric("ttft", "TTFT", "s")
TPOT = Metric("tpot", "TPOT", "s")
E2E = Metric("e2e", "E2E", "s")
PROMPT = Metric("prompt_throughput", "prompt tok/s", "tokens/s")
OUTPUT = Metric("output_throughput", "output tok/s", "tokens/s")
USER = Metric("user_speed", "user tok/s", "tokens/s")
CALL = Metric("call", "call", "s")
BANDWIDTH = Metric("bandwidth", "bandwidth", "bytes/s")

OF_REQUESTS = (TTFT, TPOT, E2E, PROMPT, OUTPUT, USER)
OF_CALLS = (CALL, BANDWIDTH)
BY_NAME = {metric.name: metric for metric in (*OF_REQUESTS, *OF_CALLS)}
# User speed is TPOT upside down: comparing both would say the same twice.
COMPARED = (TTFT, TPOT, E2E, PROMPT, OUTPUT)
# What must be known narrowly enough before a measurement ends.
DECISIVE = (TTFT, TPOT, OUTPUT)
