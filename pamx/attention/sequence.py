"""One sequence in the pool, with caches that drive their own steps."""

from __future__ import annotations

import gc
import weakref

import mlx.core as mx

from pamx.attention.backend import Backend
from pamx.attention.cache import PagedKVCache, StepState
from pamx.attention.placeholders import Placeholders, UnsupportedAttentionError
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.errors import OutOfBlocksError
from pamx.kv.block_table import BlockCopy, BlockTable
from pamx.kv.pool import BlockPool


class PagedSequence:
    """A block table and a cache for each layer.

    The `caches` work with any code that runs an mlx-lm model with a prompt cache: the table
    grows a page at a time as the model brings tokens, and shrinks as the caches are trimmed.

    Args:
        pool: The pages.
        table: The sequence's block table, empty.
        backend: Serves the attention calls.
        placeholders: Shared with the model's substituted attention calls.
    """

    def __init__(
        self, pool: BlockPool, table: BlockTable, backend: Backend, placeholders: Placeholders
    ) -> None:
        self._pool = pool
        self._table = table
        self._state = StepState(backend, placeholders, self._next_step, self._trimmed)
        # A sequence that is dropped instead of closed gives its pages back all the same.
        weakref.finalize(self, table.close)
        self.caches = [PagedKVCache(layer, self._state) for layer in pool.layers]

    @property
    def num_tokens(self) -> int:
        """Tokens that have pages."""
        return self._table.num_tokens

    @property
    def num_blocks(self) -> int:
        """Blocks that the sequence holds."""
        return len(self._table.blocks)

    def arrays(self) -> list[mx.array]:
        """The pools as the last queued write leaves them: evaluate these to settle it."""
        return [array for layer in self._pool.layers for array in (layer.keys, layer.values)]

    def trim(self, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens and releases the other pages."""
        self._table.trim(num_tokens)
        self._state.set_step(None)
        for cache in self.caches:
            cache.rewind(num_tokens)

    def close(self) -> None:
        """Releases every page; the sequence is empty and usable afterwards."""
        self.trim(0)

    def _grow(self, tokens: int) -> list[BlockCopy]:
        try:
            return self._table.grow(tokens)
        except OutOfBlocksError:
            # Sequences that were dropped may be waiting for the collector.
            self._state.placeholders.clear()
            gc.collect()
            return self._table.grow(tokens)

    def _trimmed(self) -> None:
        longest = max(cache.size() for cache in self.caches)
        if longest < self._table.num_tokens:
            self._table.trim(longest)

    def _next_step(self, start: int, tokens: int) -> Step:
        if start < self._table.num_tokens:
            self._table.trim(start)  # the caches were trimmed one by one
        elif start > self._table.num_tokens:
            raise UnsupportedAttentionError(
                f"A layer continues at token {start} of a sequence of {self._table.num_tokens}."
            )
        self._pool.copy(self._grow(tokens))
        part = SequenceSlice(tuple(self._table.blocks), start + tokens, tokens)
        return Step([part], Packing.SEQUENCE, self._pool.num_blocks, self._pool.block_size)
