"""The block manager and block tables never lose, double or share a page by mistake."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from pamx.errors import OutOfBlocksError
from pamx.kv import BlockManager, BlockTable


def test_blocks_are_taken_all_or_not_at_all() -> None:
    manager = BlockManager(4, 16)
    manager.allocate(3)
    with pytest.raises(OutOfBlocksError, match=r"2 more blocks of 16 tokens .* 1 of 4 are free"):
        manager.allocate(2)
    assert manager.num_free == 1


def test_a_block_that_is_not_in_use_cannot_be_released_or_shared() -> None:
    manager = BlockManager(2, 8)
    (block,) = manager.allocate(1)
    manager.release([block])
    for misuse in (manager.release, manager.retain):
        for wrong in (block, 5, -1):
            with pytest.raises(ValueError, match="not in use"):
                misuse([wrong])
    assert manager.num_free == 2


def test_impossible_counts_change_nothing() -> None:
    manager = BlockManager(4, 8)
    blocks = manager.allocate(2)
    with pytest.raises(ValueError, match="cannot allocate -1"):
        manager.allocate(-1)
    with pytest.raises(ValueError, match="has 1 references"):
        manager.release([blocks[0], blocks[1], blocks[1]])
    with pytest.raises(ValueError, match="not in use"):
        manager.release([blocks[0], 3])
    with pytest.raises(ValueError, match="cannot grow by -3"):
        BlockTable(manager).grow(-3)
    assert (manager.num_free, manager.references(blocks[0])) == (2, 1)


class Dropped:
    """Holds blocks, is part of a cycle, and gives its blocks back when it is collected."""

    def __init__(self, manager: BlockManager) -> None:
        self.myself = self
        weakref.finalize(self, manager.release, manager.allocate(2))


def test_blocks_that_come_back_while_others_are_taken() -> None:
    """The collector may run, and close what was dropped, at any allocation of Python's."""
    before = gc.get_threshold()
    try:
        for moment in range(1, 30):
            manager = BlockManager(64, 8)
            gc.collect()
            gc.disable()
            Dropped(manager)
            lists = [[moment] for _ in range(300)]  # more than Python keeps for reuse
            gc.set_threshold(gc.get_count()[0] + moment)
            gc.enable()
            taken = manager.allocate(3)
            del lists
            gc.collect()
            rest = manager.allocate(manager.num_free)
            assert sorted(taken + rest) == list(range(64))
    finally:
        gc.enable()
        gc.set_threshold(*before)


@pytest.mark.parametrize("size", [0, 7, 64])
def test_block_sizes_are_those_that_the_kernels_have(size: int) -> None:
    with pytest.raises(ValueError, match="block_size"):
        BlockManager(4, size)


def test_a_table_grows_a_page_at_a_time_and_gives_all_back() -> None:
    manager = BlockManager(8, 8)
    table = BlockTable(manager)
    used = []
    for _ in range(20):
        table.grow(1)
        used.append(manager.num_used)
    assert used == [1] * 8 + [2] * 8 + [3] * 4
    table.close()
    assert (manager.num_free, table.num_tokens, table.blocks) == (8, 0, [])


def test_a_table_that_cannot_grow_is_unchanged() -> None:
    manager = BlockManager(2, 8)
    table = BlockTable(manager)
    table.grow(10)
    blocks = list(table.blocks)
    with pytest.raises(OutOfBlocksError):
        table.grow(7)
    assert (table.blocks, table.num_tokens, manager.num_used) == (blocks, 10, 2)


def test_a_fork_shares_pages_and_copies_only_the_tail_that_is_written() -> None:
    manager = BlockManager(8, 8)
    first = BlockTable(manager)
    first.grow(20)
    second = first.fork()
    assert manager.num_used == 3

    (copy,) = second.grow(1)
    assert (copy.source, copy.target) == (first.blocks[2], second.blocks[2])
    assert second.blocks[:2] == first.blocks[:2]
    assert first.grow(1) == [], "the other holder is alone on its tail now"
    assert manager.num_used == 4

    first.close()
    second.close()
    assert manager.num_free == 8


class Pages(RuleBasedStateMachine):
    """Random growing, trimming, forking and closing, against a model that writes every slot.

    The model keeps, for each block, the tokens last written into each slot. A table must always
    read back exactly its own tokens: a page that was freed too early, written by two sequences
    or not copied on write shows as a foreign token.
    """

    tables = Bundle("tables")

    @initialize(num_blocks=st.integers(1, 12), size=st.sampled_from([8, 16, 32]))
    def start(self, num_blocks: int, size: int) -> None:
        self.manager = BlockManager(num_blocks, size)
        self.slots: dict[tuple[int, int], int] = {}
        self.tokens: dict[BlockTable, list[int]] = {}
        self.counter = 0

    @rule(target=tables)
    def open_table(self) -> BlockTable:
        table = BlockTable(self.manager)
        self.tokens[table] = []
        return table

    @rule(table=tables, count=st.integers(1, 40))
    def grow(self, table: BlockTable, count: int) -> None:
        before = (list(table.blocks), self.manager.num_free)
        start = table.num_tokens
        try:
            copies = table.grow(count)
        except OutOfBlocksError:
            assert (list(table.blocks), self.manager.num_free) == before
            return
        size = self.manager.block_size
        for copy in copies:
            for i in range(size):
                if (copy.source, i) in self.slots:
                    self.slots[copy.target, i] = self.slots[copy.source, i]
        for position in range(start, start + count):
            self.counter += 1
            self.slots[table.blocks[position // size], position % size] = self.counter
            self.tokens[table].append(self.counter)

    @rule(table=tables, keep=st.floats(0, 1))
    def trim(self, table: BlockTable, keep: float) -> None:
        tokens = int(table.num_tokens * keep)
        table.trim(tokens)
        del self.tokens[table][tokens:]

    @rule(target=tables, table=tables)
    def fork(self, table: BlockTable) -> BlockTable:
        other = table.fork()
        self.tokens[other] = list(self.tokens[table])
        return other

    @rule(table=consumes(tables))
    def close(self, table: BlockTable) -> None:
        table.close()
        del self.tokens[table]

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        size = self.manager.block_size
        for table, tokens in self.tokens.items():
            found = [self.slots[table.blocks[p // size], p % size] for p in range(len(tokens))]
            assert found == tokens

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        holders: dict[int, int] = {}
        for table in self.tokens:
            for block in table.blocks:
                holders[block] = holders.get(block, 0) + 1
        assert self.manager.num_used == len(holders)
        for block in range(self.manager.num_blocks):
            assert self.manager.references(block) == holders.get(block, 0)


TestPages = Pages.TestCase


def test_threads_never_get_one_block_twice_or_lose_one() -> None:
    """A dropped sequence is collected on whichever thread that happens."""
    manager = BlockManager(60, 16)
    failed: list[Exception] = []

    def take_and_give_back() -> None:
        try:
            for _ in range(20_000):
                try:
                    blocks = manager.allocate(25)
                except OutOfBlocksError:
                    continue
                manager.release(blocks)
        except Exception as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-9)
    try:
        threads = [threading.Thread(target=take_and_give_back) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
    assert sorted(manager.allocate(60)) == list(range(60))
