"""Log-probabilities of drawn tokens and of the most likely ones, as the model gave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pamx.engine.draw import ROWS_TOGETHER, taken


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities at one place: of the drawn token, and of the most likely ones."""

    chosen: float
    top: dict[int, float]


class LogprobRows:
    """The log-probabilities that are wanted of a step; of few rows lazy until they are read.

    Args:
        logits: [rows, vocabulary] before bias and penalties.
        counts: For each place, how many of the most likely tokens are wanted.
        rows: Which row of the logits is whose; None: each place has its own.
    """

    def __init__(
        self, logits: mx.array, counts: Sequence[int], rows: Sequence[int] | None = None
    ) -> None:
        self._counts = list(counts)
        self._rows = list(range(len(self._counts)) if rows is None else rows)
        self._logits: mx.array | None = logits
        self._piece: _Piece | None = None
        self._found: list[Logprobs] = []
        if len(self._counts) <= ROWS_TOGETHER:
            self._piece = _Piece(taken(logits, self._rows), self._counts)
            self._logits = None

    def choose(self, tokens: mx.array) -> None:
        """Tells the drawn tokens [rows]."""
        self._tokens = tokens
        if self._piece is not None:
            self._piece.choose(tokens)

    def settle(self) -> None:
        """Computes those of many rows, a few at a time, and lets the logits go."""
        if self._logits is None:
            return
        for start in range(0, len(self._rows), ROWS_TOGETHER):
            part = slice(start, start + ROWS_TOGETHER)
            piece = _Piece(taken(self._logits, self._rows[part]), self._counts[part])
            piece.choose(self._tokens[part])
            self._found += piece.read()
        self._logits = None

    def arrays(self) -> list[mx.array]:
        """What to evaluate before `read`."""
        return [] if self._piece is None else self._piece.arrays()

    def read(self) -> list[Logprobs]:
        """Of each place; the most likely first, and of equals the lowest id."""
        self.settle()
        return self._found if self._piece is None else self._piece.read()


class _Piece:
    """Of so many rows as are computed together."""

    def __init__(self, logits: mx.array, counts: Sequence[int]) -> None:
        self._counts = counts
        self._scores = logits.astype(mx.float32)
        self._total = mx.logsumexp(self._scores, axis=-1, keepdims=True)
        self._chosen = self._ids = self._top = mx.zeros((len(counts), 0))
        if most := min(max(counts), logits.shape[-1]):
            self._ids = mx.argpartition(-self._scores, kth=most - 1, axis=-1)[:, :most]
            self._top = self._of(self._ids)

    def choose(self, tokens: mx.array) -> None:
        self._chosen = self._of(tokens[:, None])

    def _of(self, ids: mx.array) -> mx.array:
        return mx.take_along_axis(self._scores, ids, axis=-1) - self._total

    def arrays(self) -> list[mx.array]:
        return [self._chosen, self._ids, self._top]

    def read(self) -> list[Logprobs]:
        places: Any = zip(*(array.tolist() for array in self.arrays()), strict=True)
        found = []
        for count, ((chosen,), ids, top) in zip(self._counts, places, strict=True):
            best = sorted(zip(ids, top, strict=True), key=lambda pair: (-pair[1], pair[0]))
            found.append(Logprobs(chosen, dict(best[:count])))
        return found
