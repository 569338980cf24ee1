"""One step: the sequences of a forward pass, packed without padding, built once for all layers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import mlx.core as mx
import numpy as np

from pamx.errors import BlockTableError
from pamx.native.ops import Int32Array, NativeBatch


class Packing(enum.Enum):
    """The shape in which the model sees a step's tokens."""

    SEQUENCE = "(1, T)"  # one sequence; offsets are one integer
    ROWS = "(T, 1)"  # every token is its own batch row, with an offset of its own


@dataclass(frozen=True)
class SequenceSlice:
    """One sequence's part of a step: `query_len` new tokens that end at `context_len`.

    `blocks` is its block table, long enough for `context_len` tokens.
    """

    blocks: Sequence[int]
    context_len: int
    query_len: int

    @property
    def start(self) -> int:
        """Position of the first new token."""
        return self.context_len - self.query_len


class Step:
    """A forward pass's sequences and everything that attention derives from them.

    Args:
        slices: One entry for each sequence, in the order of the packed tokens.
        packing: How the model sees the tokens; SEQUENCE takes exactly one sequence.
        num_blocks: Blocks in the pool.
        block_size: Tokens a block.

    Attributes:
        num_tokens: New tokens of all sequences.
        start, end: Positions of the first sequence's new tokens: [start, end).
    """

    def __init__(
        self,
        slices: Sequence[SequenceSlice],
        packing: Packing,
        num_blocks: int,
        block_size: int,
    ) -> None:
        if not slices:
            raise ValueError("a step has at least one sequence")
        if packing is Packing.SEQUENCE and len(slices) != 1:
            raise ValueError(f"{packing} packs one sequence, not {len(slices)}")
        self.slices = tuple(slices)
        self.packing = packing
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_tokens = sum(s.query_len for s in self.slices)
        self.start, self.end = self.slices[0].start, self.slices[0].context_len

    def check(self) -> None:
        """Raises BlockTableError if a block table is too short or points outside the pool."""
        for part in self.slices:
            needed = -(-part.context_len // self.block_size)
            if not 1 <= part.query_len <= part.context_len or len(part.blocks) < needed:
                raise BlockTableError(
                    f"A sequence of {part.context_len} tokens, {part.query_len} of them new, has "
                    f"{len(part.blocks)} blocks of {self.block_size} tokens."
                )
            for block in part.blocks[:needed]:
                if not 0 <= block < self.num_blocks:
                    raise BlockTableError(
                        f"A block table holds block {block}; the pool has blocks 0 to "
                        f"{self.num_blocks - 1}."
                    )

    @cached_property
    def query_starts(self) -> Int32Array:
        """[sequences + 1]: where each sequence's tokens begin (`cu_seqlens`)."""
        return np.array([0, *accumulate(s.query_len for s in self.slices)], np.int32)

    @cached_property
    def context_lens(self) -> Int32Array:
        """[sequences]: tokens of each sequence, the new ones included."""
        return np.array([s.context_len for s in self.slices], np.int32)

    @cached_property
    def block_tables(self) -> Int32Array:
        """[sequences, max_blocks]; unused entries hold -1."""
        tables = np.full((len(self.slices), max(len(s.blocks) for s in self.slices)), -1, np.int32)
        for row, part in zip(tables, self.slices, strict=True):
            row[: len(part.blocks)] = part.blocks
        return tables

    @cached_property
    def positions(self) -> mx.array:
        """[tokens] int32: each packed token's position in its sequence."""
        return mx.array(
            np.concatenate([np.arange(s.start, s.context_len) for s in self.slices]), mx.int32
        )

    @cached_property
    def slot_mapping(self) -> mx.array:
        """[tokens] int32: each new token's slot, block * block_size + offset in the block."""
        size = self.block_size
        slots = [
            part.blocks[p // size] * size + p % size
            for part in self.slices
            for p in range(part.start, part.context_len)
        ]
        return mx.array(slots, mx.int32)

    @cached_property
    def native(self) -> NativeBatch:
        """The same step, validated, on the native side."""
        return NativeBatch(
            self.query_starts,
            self.context_lens,
            self.block_tables,
            self.num_blocks,
            self.block_size,
        )
