"""The prefix cache: full blocks found again by the tokens that they and their ancestors hold.

A block's key is a hash chained over its tokens, its parent's key and, at the root, a fingerprint
of whatever else the contents depend on (the model, the KV format). A hash could collide, so a
hit also compares the block's tokens and that its parent is the very entry before it: another
request's text can never come back. The index holds one reference to each of its blocks; a block
that nobody else holds may be evicted, the least recently used first.
"""

from __future__ import annotations

import array
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pamx.kv.block_manager import BlockManager

Key = bytes


@dataclass(frozen=True, eq=False)
class Entry:
    """A cached block: its id, the tokens it holds, the block before it, and how many are before."""

    block: int
    tokens: tuple[int, ...]
    parent: Entry | None
    index: int

    def holds(self, tokens: Sequence[int], start: int, parent: Entry | None) -> bool:
        """Whether this is the block of `tokens` from `start` on, after the block `parent`."""
        end = start + len(self.tokens)
        return self.parent is parent and self.tokens == tuple(tokens[start:end])


class PrefixIndex:
    """Finds blocks by content.

    Args:
        manager: Owns the blocks.
        fingerprint: Identifies the model and the KV format.

    Attributes:
        hits: Blocks found since the start.
        misses: Full blocks looked for and not found.
    """

    def __init__(self, manager: BlockManager, fingerprint: str = "") -> None:
        self._manager = manager
        self._root = hashlib.blake2b(fingerprint.encode(), digest_size=16).digest()
        # In order of last use; a released sequence's last blocks come before its first ones, so
        # that a chain is evicted from its end.
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def extend(self, keys: list[Key], tokens: Sequence[int]) -> None:
        """Adds the keys of the full blocks of `tokens` that `keys`, the first of them, lacks."""
        size = self._manager.block_size
        for start in range(len(keys) * size, len(tokens) - size + 1, size):
            block = array.array("q", tokens[start : start + size]).tobytes()
            parent = keys[-1] if keys else self._root
            keys.append(hashlib.blake2b(parent + block, digest_size=16).digest())

    def find(self, keys: Sequence[Key], tokens: Sequence[int]) -> list[int]:
        """Blocks that hold the longest cached beginning of `tokens`, without taking them.

        Counts as a use of each, and towards `hits` and `misses`.

        Args:
            keys: The keys of the blocks to look for.
            tokens: At least the tokens of those blocks.
        """
        size = self._manager.block_size
        found: list[Entry] = []
        for index, key in enumerate(keys):
            entry = self._entries.get(key)
            parent = found[-1] if found else None
            if entry is None or not entry.holds(tokens, index * size, parent):
                break
            found.append(entry)
        self.touch(keys[: len(found)])
        self.hits += len(found)
        self.misses += len(keys) - len(found)
        return [entry.block for entry in found]

    def insert(
        self,
        keys: Sequence[Key],
        tokens: Sequence[int],
        blocks: Sequence[int],
        count: int,
        last: Entry | None = None,
    ) -> Entry | None:
        """Remembers the first `count` blocks of a sequence: full ones, whose contents are computed.

        Content that is cached already, in another block, stays where it is.

        Args:
            keys, tokens, blocks: Of the sequence; what is behind those blocks does not matter.
            count: Blocks to remember.
            last: What the call before this one returned for the sequence: only what is behind it
                is looked at, unless it has been evicted.

        Returns:
            The last of the blocks as the index has it.
        """
        size = self._manager.block_size
        parent = last if last and self._entries.get(keys[last.index]) is last else None
        for index in range(parent.index + 1 if parent else 0, count):
            key = keys[index]
            entry = self._entries.get(key)
            if entry is not None and not entry.holds(tokens, index * size, parent):
                # A collision, or what is left of a chain whose beginning was evicted.
                self._manager.release([self._entries.pop(key).block])
                entry = None
            if entry is None:
                held = tuple(tokens[index * size : (index + 1) * size])
                entry = Entry(blocks[index], held, parent, index)
                self._manager.retain([entry.block])
                self._entries[key] = entry
            parent = entry
        return parent

    def touch(self, keys: Sequence[Key]) -> None:
        """Counts as a use of the cached ones of these blocks, the first being the most recent."""
        for key in reversed(keys):
            if key in self._entries:
                self._entries.move_to_end(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def evict(self, count: int) -> int:
        """Gives up to `count` blocks that only the index holds back to the pool."""
        unused = (k for k, e in self._entries.items() if self._manager.references(e.block) == 1)
        evicted = list(islice(unused, max(count, 0)))
        gone = [self._entries.pop(key, None) for key in evicted]
        self._manager.release([entry.block for entry in gone if entry is not None])
        return len(evicted)

    def clear(self) -> None:
        """Forgets everything; blocks that sequences hold stay theirs.

        May come at any moment of another method, when a batch is collected.
        """
        entries, self._entries = self._entries, OrderedDict()
        self._manager.release([entry.block for entry in entries.values()])
