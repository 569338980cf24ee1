"""Log-probabilities of drawn tokens and of the most likely ones, as the model gave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities at one place: of the drawn token, and of the most likely ones."""

    chosen: float
    top: dict[int, float]


class LogprobRows:
    """The log-probabilities that are wanted of a step; lazy until they are read.

    Args:
        logits: [rows, vocabulary] before bias and penalties.
        counts: For each row, how many of the most likely tokens are wanted.
    """

    def __init__(self, logits: mx.array, counts: Sequence[int]) -> None:
        self._counts = counts
        self._scores = logits.astype(mx.float32)
        self._total = mx.logsumexp(self._scores, axis=-1, keepdims=True)
        self._chosen = self._ids = self._top = mx.zeros((len(counts), 0))
        if most := min(max(counts), logits.shape[-1]):
            self._ids = mx.argpartition(-self._scores, kth=most - 1, axis=-1)[:, :most]
            self._top = self._of(self._ids)

    def choose(self, tokens: mx.array) -> None:
        """Tells the drawn tokens [rows]."""
        self._chosen = self._of(tokens[:, None])

    def _of(self, ids: mx.array) -> mx.array:
        return mx.take_along_axis(self._scores, ids, axis=-1) - self._total

    def arrays(self) -> list[mx.array]:
        """What to evaluate before `read`."""
        return [self._chosen, self._ids, self._top]

    def read(self) -> list[Logprobs]:
        """Of each row; the most likely first, and of equals the lowest id."""
        places: Any = zip(*(array.tolist() for array in self.arrays()), strict=True)
        found = []
        for count, ((chosen,), ids, top) in zip(self._counts, places, strict=True):
            best = sorted(zip(ids, top, strict=True), key=lambda pair: (-pair[1], pair[0]))
            found.append(Logprobs(chosen, dict(best[:count])))
        return found
