"""The one authority over pages: which blocks are free, and who holds the others.

Pure policy: block ids and counts, no arrays. A block is a fixed number of token slots in every
layer's pool; the pools themselves are in `pamx.kv.pool`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from pamx.errors import OutOfBlocksError

BLOCK_SIZES = (8, 16, 32)


class BlockManager:
    """A fixed number of blocks with a free list and reference counts.

    Any thread may call it at any moment: a sequence that is dropped gives its blocks back on the
    thread that happens to collect it.

    Args:
        num_blocks: Blocks in the pool; the number never changes.
        block_size: Tokens a block: 8, 16 or 32.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size must be one of {BLOCK_SIZES}, not {block_size}")
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block freed last is the one whose memory is still warm.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._reclaimers: list[Callable[[int], int]] = []
        self._lock = threading.RLock()  # taken again when a collection falls into a call

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens of one sequence occupy."""
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        """How many holders a block has; 0 for a free one."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks, each with one reference; all of them or none.

        Raises:
            OutOfBlocksError: fewer than `count` are free.
        """
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        with self._lock:
            for reclaim in tuple(self._reclaimers):  # a collected batch takes its own out
                if count > len(self._free):
                    reclaim(count - len(self._free))
            if count > len(self._free):
                raise OutOfBlocksError(
                    f"{count} more blocks of {self.block_size} tokens are needed, and "
                    f"{len(self._free)} of {self.num_blocks} are free."
                )
            # One by one: a collected sequence may give its blocks back at any moment in between.
            taken = [self._free.pop() for _ in range(count)]
            for block in taken:
                self._references[block] = 1
            return taken

    def add_reclaimer(self, reclaim: Callable[[int], int]) -> None:
        """Before an allocation fails, asks `reclaim` to release that many blocks, if it can."""
        self._reclaimers.append(reclaim)

    def remove_reclaimer(self, reclaim: Callable[[int], int]) -> None:
        """Asks it no more, if it was asked."""
        if reclaim in self._reclaimers:
            self._reclaimers.remove(reclaim)

    def retain(self, blocks: Iterable[int]) -> None:
        """Adds one reference to each of `blocks`, which must be in use."""
        blocks = list(blocks)
        with self._lock:
            for block in blocks:
                self._check_used(block)
            for block in blocks:
                self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> list[int]:
        """Drops one reference from each of `blocks`; returns those that became free."""
        blocks = list(blocks)
        with self._lock:
            for block, times in Counter(blocks).items():
                self._check_used(block)
                if times > self._references[block]:
                    raise ValueError(f"block {block} has {self._references[block]} references")
            freed = []
            for block in blocks:
                self._references[block] -= 1
                if self._references[block] == 0:
                    self._free.append(block)
                    freed.append(block)
            return freed

    def _check_used(self, block: int) -> None:
        if not 0 <= block < self.num_blocks or self._references[block] == 0:
            raise ValueError(f"block {block} is not in use")
