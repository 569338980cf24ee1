"""One sequence's pages: its logical blocks in order, grown a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pamx.kv.block_manager import BlockManager


@dataclass(frozen=True)
class BlockCopy:
    """A block whose contents must be copied before the next write (copy-on-write)."""

    source: int
    target: int


class BlockTable:
    """Maps a sequence's token positions to blocks: position p is in slot p % block_size of
    block `blocks[p // block_size]`.

    Holds one reference to each of its blocks until `close`.
    """

    def __init__(self, manager: BlockManager) -> None:
        self.manager = manager
        self.blocks: list[int] = []
        self.num_tokens = 0

    @property
    def shares_tail(self) -> bool:
        """Whether the next token goes into a block that somebody else also holds."""
        tail, tokens = divmod(self.num_tokens, self.manager.block_size)
        return tokens > 0 and self.manager.references(self.blocks[tail]) > 1

    def grow(self, tokens: int) -> list[BlockCopy]:
        """Makes room for `tokens` more tokens and counts them as present.

        The caller writes exactly the new positions. If they begin inside a block that somebody
        else also holds, that block is replaced by a fresh one.

        Returns:
            The copies to make in every layer's pool before writing; at most one.

        Raises:
            OutOfBlocksError: the pool has too few free blocks; nothing has changed then.
        """
        if tokens < 0:
            raise ValueError(f"cannot grow by {tokens} tokens")
        shared = self.shares_tail
        new = self.manager.blocks_for(self.num_tokens + tokens) - len(self.blocks)
        fresh = self.manager.allocate(max(new, 0) + shared)
        copies = []
        if shared:
            tail = self.num_tokens // self.manager.block_size
            copies.append(BlockCopy(self.blocks[tail], fresh[0]))
            self.manager.release([self.blocks[tail]])
            self.blocks[tail] = fresh.pop(0)
        self.blocks += fresh
        self.num_tokens += tokens
        return copies

    def adopt(self, blocks: Sequence[int]) -> None:
        """Begins an empty table with full blocks that are computed already, sharing them."""
        if self.blocks:
            raise ValueError("only an empty table can adopt blocks")
        self.manager.retain(blocks)
        self.blocks = list(blocks)
        self.num_tokens = len(blocks) * self.manager.block_size

    def trim(self, num_tokens: int) -> None:
        """Forgets every token from position `num_tokens` on and releases the emptied blocks."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot trim {self.num_tokens} tokens to {num_tokens}")
        keep = self.manager.blocks_for(num_tokens)
        # Forgotten before they are released: should Ctrl-C fall in between, they are lost, but not
        # released twice.
        gone, self.blocks[keep:] = self.blocks[keep:], []
        self.num_tokens = num_tokens
        self.manager.release(gone)

    def fork(self) -> BlockTable:
        """A second table over the same blocks; whichever grows first copies the shared tail."""
        other = BlockTable(self.manager)
        self.manager.retain(self.blocks)
        other.blocks = list(self.blocks)
        other.num_tokens = self.num_tokens
        return other

    def close(self) -> None:
        """Releases every block. The table is empty and usable afterwards."""
        self.trim(0)
