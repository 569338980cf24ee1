"""From the times of tokens to the figures of a request and of a sample; seconds everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RequestTiming:
    """When a request was submitted and when each of its tokens was received.

    Attributes:
        submitted: Seconds from the beginning of the sample.
        times: Likewise, one for each token, ascending.
        prompt_tokens: Tokens of its prompt.
    """

    submitted: float
    times: tuple[float, ...]
    prompt_tokens: int

    @property
    def ttft(self) -> float:
        return self.times[0] - self.submitted

    @property
    def e2e(self) -> float:
        return self.times[-1] - self.submitted

    @property
    def tpot(self) -> float | None:
        """None for a single token."""
        count = len(self.times)
        return None if count < 2 else (self.e2e - self.ttft) / (count - 1)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def span(requests: Sequence[RequestTiming]) -> float:
    """From the first submission to the last token."""
    return max(r.times[-1] for r in requests) - min(r.submitted for r in requests)


def prompt_throughput(requests: Sequence[RequestTiming]) -> float:
    """Prompt tokens a second, until the last of the first tokens."""
    begin = min(r.submitted for r in requests)
    return sum(r.prompt_tokens for r in requests) / (max(r.times[0] for r in requests) - begin)


def output_throughput(requests: Sequence[RequestTiming]) -> float:
    """Output tokens a second."""
    return sum(len(r.times) for r in requests) / span(requests)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def sample_figures(requests: Sequence[RequestTiming]) -> dict[str, float]:
    """One number a metric, for statistics over repetitions: means over the sample's requests."""
    figures = {
        "ttft": mean([r.ttft for r in requests]),
        "e2e": mean([r.e2e for r in requests]),
        "prompt_throughput": prompt_throughput(requests),
        "output_throughput": output_throughput(requests),
    }
    tpots = [r.tpot for r in requests if r.tpot is not None]
    if tpots:
        figures["tpot"] = mean(tpots)
        if figures["tpot"] > 0:  # else all tokens came at once
            figures["user_speed"] = 1 / figures["tpot"]
    return figures
