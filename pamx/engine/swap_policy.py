"""The cost model of preemption: move a sequence's pages to a swap tier, or compute them again?"""

from __future__ import annotations

from pamx.engine.sequence import Sequence
from pamx.kv.swap import SwapSpace

# Bytes a second for a round trip through memory: copied out, checked, copied in. An order of
# magnitude is enough: against a model's speed of computing, the two sides rarely come close.
SWAP_BYTES_PER_SECOND = 1e9
# How much a new observation of the step speed weighs against all earlier ones.
_WEIGHT = 0.2


class SwapPolicy:
    """Compares seconds, with a speed of computing that it learns from the steps that run."""

    def __init__(self, swap: SwapSpace) -> None:
        self._swap = swap
        self._seconds_per_token: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """Tells how long a step over so many tokens took."""
        if tokens < 1:
            return
        new = seconds / tokens
        old = self._seconds_per_token
        self._seconds_per_token = new if old is None else old + _WEIGHT * (new - old)

    def prefer_swap(self, sequence: Sequence) -> bool:
        """Whether to move a running sequence's pages; room for them is then reserved."""
        blocks = len(sequence.table.blocks)
        moving = 2 * blocks * self._swap.block_bytes / SWAP_BYTES_PER_SECOND
        computing = sequence.table.num_tokens * (self._seconds_per_token or 0.0)
        return moving < computing and self._swap.reserve(sequence.id, blocks)
