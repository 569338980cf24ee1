"""In which order arms take their turns: random within a block, and every block mirrored.

With arms A and B a block is ABBA or BAAB. A linear drift of the machine's speed then adds the same
to both arms of a block. Two turns of an arm at mirrored places make up one block; each of them is
paired with the turn of the other arm in the same half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def mirrored_block(arms: Sequence[T], rng: np.random.Generator) -> list[tuple[int, T]]:
    """One block: (half, arm) for each turn."""
    order = [arms[i] for i in rng.permutation(len(arms))]
    return [(half, arm) for half, turns in enumerate((order, order[::-1])) for arm in turns]


def blocks(arms: Sequence[T], seed: int) -> Iterator[list[tuple[int, T]]]:
    """Blocks without end, the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        yield mirrored_block(arms, rng)
