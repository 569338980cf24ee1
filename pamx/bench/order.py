"""In which order arms take their turns: random within a round, and every round mirrored.

With arms A and B a round is ABBA or BAAB. A linear drift of the machine's speed then adds the same
to both arms of a round. Two turns of an arm at mirrored places make up one round; each of them is
paired with the turn of the other arm in the same half. Records call a round `block`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def mirrored_round(arms: Sequence[T], rng: np.random.Generator) -> list[tuple[int, T]]:
    """One round: (half, arm) for each turn."""
    order = [arms[i] for i in rng.permutation(len(arms))]
    return [(half, arm) for half, turns in enumerate((order, order[::-1])) for arm in turns]


def rounds(arms: Sequence[T], seed: int) -> Iterator[list[tuple[int, T]]]:
    """Rounds without end, the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        yield mirrored_round(arms, rng)
