"""From logits to the next token: temperature, top-k, top-p, min-p, and a seed of one's own."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from pamx.errors import RequestError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: 0 takes the most likely token; higher is more varied.
        top_p: Keep the smallest set of tokens whose probabilities reach this sum; 1 keeps all.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        min_p: Keep tokens at least this likely relative to the most likely one; 0 keeps all.
        seed: Repeats a draw exactly; None draws anew each time.

    The logits are divided by the temperature first, then cut by top-k, top-p and min-p in that
    order.

    Raises:
        RequestError: a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, value, allowed, good in (
            ("temperature", self.temperature, "0 or more", self.temperature >= 0),
            ("top_p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1),
            ("top_k", self.top_k, "0 or more", self.top_k >= 0),
            ("min_p", self.min_p, "from 0 to 1", 0 <= self.min_p <= 1),
            ("seed", self.seed, "0 to 2^64 - 1", self.seed is None or 0 <= self.seed < 2**64),
        ):
            if not good or (isinstance(value, float) and not math.isfinite(value)):
                raise RequestError(f"{name} is {value}; it must be {allowed}.")


Sampler = Callable[[mx.array, int], mx.array]


def make_sampler(sampling: Sampling) -> Sampler:
    """Returns a lazy function of (logits [rows, vocabulary], index of the new token).

    The draw depends on the logits, the seed and the index alone, not on what else this process
    has drawn.
    """
    if sampling.temperature == 0:
        return lambda logits, _: mx.argmax(logits, axis=-1)
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed

    def draw(logits: mx.array, index: int) -> mx.array:
        scores = logits.astype(mx.float32) * (1 / sampling.temperature)
        scores = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        if 0 < sampling.top_k < scores.shape[-1]:
            scores = apply_top_k(scores, sampling.top_k)
        if sampling.top_p < 1:
            scores = apply_top_p(scores, sampling.top_p)
        if sampling.min_p > 0:
            scores = apply_min_p(scores, sampling.min_p)
        # Weyl's sequence: each index of each seed has a key of its own.
        key = mx.random.key((seed + index * 0x9E3779B97F4A7C15) % 2**64)
        return mx.random.categorical(scores, key=key)

    return draw
