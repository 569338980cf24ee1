"""The prefix cache finds what was computed, never what merely looks alike, and forgets in order."""

from __future__ import annotations

import pytest

from pamx.kv import BlockManager
from pamx.kv.prefix_index import Key, PrefixIndex

SIZE = 8


def keys_of(index: PrefixIndex, tokens: list[int]) -> list[Key]:
    keys: list[Key] = []
    index.extend(keys, tokens)
    return keys


def add(index: PrefixIndex, manager: BlockManager, tokens: list[int]) -> list[int]:
    """Computes `tokens` in fresh blocks, caches the full ones, and lets go of them."""
    blocks = manager.allocate(manager.blocks_for(len(tokens)))
    keys = keys_of(index, tokens)
    index.insert(keys, tokens, blocks, len(keys))
    manager.release(blocks)
    return blocks[: len(keys)]


def find(index: PrefixIndex, tokens: list[int]) -> list[int]:
    return index.find(keys_of(index, tokens), tokens)


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(20, SIZE)


def test_the_longest_cached_beginning_is_found(manager: BlockManager) -> None:
    index = PrefixIndex(manager)
    tokens = list(range(30))
    blocks = add(index, manager, tokens)
    assert len(blocks) == 3
    assert find(index, tokens) == blocks
    assert find(index, [*tokens[:17], 99, 99, 99, 99, 99, 99, 99]) == blocks[:2]
    assert find(index, [99, *tokens]) == []
    assert find(index, tokens[:7]) == []
    assert manager.num_used == 3, "cached blocks stay, the partial one does not"
    assert (index.hits, index.misses) == (5, 4)


def test_the_same_block_after_another_beginning_is_another_block(manager: BlockManager) -> None:
    index = PrefixIndex(manager)
    first, second = [1] * SIZE + [3] * SIZE, [2] * SIZE + [3] * SIZE
    assert set(add(index, manager, first)) & set(add(index, manager, second)) == set()
    assert find(index, first) != find(index, second)


def test_another_model_s_blocks_have_other_keys(manager: BlockManager) -> None:
    tokens = list(range(16))
    assert keys_of(PrefixIndex(manager, "a"), tokens) != keys_of(PrefixIndex(manager, "b"), tokens)


def test_a_collision_of_keys_is_a_miss(manager: BlockManager) -> None:
    """Whatever the hash says, tokens and ancestors decide."""
    index = PrefixIndex(manager)
    tokens, other = list(range(16)), list(range(100, 116))
    add(index, manager, tokens)
    forged = keys_of(index, tokens)
    assert index.find(forged, other) == []
    assert index.find(forged, [*other[:8], *tokens[8:]]) == []
    # The colliding content replaces what was there, and no reference is lost.
    blocks = manager.allocate(2)
    index.insert(forged, other, blocks, 2)
    manager.release(blocks)
    assert index.find(forged, other) == blocks
    assert index.find(forged, tokens) == []
    index.clear()
    assert manager.num_free == 20


def test_the_least_recently_used_goes_first_and_a_chain_from_its_end(manager: BlockManager) -> None:
    index = PrefixIndex(manager)
    old, new = [1] * 24, [2] * 24
    old_blocks = add(index, manager, old)
    new_blocks = add(index, manager, new)
    index.touch(keys_of(index, new))
    find(index, old)  # a use: now `new` is older
    index.evict(2)
    assert find(index, new) == new_blocks[:1]
    assert find(index, old) == old_blocks


def test_blocks_in_use_are_not_evicted(manager: BlockManager) -> None:
    index = PrefixIndex(manager)
    blocks = add(index, manager, [1] * 16)
    manager.retain(blocks[:1])
    assert index.evict(5) == 1
    assert find(index, [1] * 16) == blocks[:1]
    assert index.evict(5) == 0
    manager.release(blocks[:1])
    assert index.evict(5) == 1
    assert manager.num_free == 20


def test_a_chain_whose_beginning_was_evicted_and_computed_again_is_whole_again(
    manager: BlockManager,
) -> None:
    index = PrefixIndex(manager)
    tokens = [1] * 24
    add(index, manager, tokens)
    head = keys_of(index, tokens)[0]
    index.touch(keys_of(index, tokens)[1:])  # the head is the oldest now
    index.evict(1)
    assert head not in index
    assert find(index, tokens) == []
    blocks = add(index, manager, tokens)
    assert find(index, tokens) == blocks
    index.clear()
    assert manager.num_free == 20


def test_equal_content_is_kept_once(manager: BlockManager) -> None:
    index = PrefixIndex(manager)
    first = add(index, manager, [1] * 16)
    add(index, manager, [1] * 16 + [2] * 8)
    assert find(index, [1] * 16 + [2] * 8)[:2] == first
    assert manager.num_used == len(index) == 3


def test_a_block_more_is_one_block_s_work(manager: BlockManager) -> None:
    """However long the chain before it: a prompt of 32k tokens would cost seconds otherwise."""
    index = PrefixIndex(manager)
    tokens = list(range(18 * SIZE))
    blocks = manager.allocate(18)
    read: list[int] = []

    class Blocks(list[int]):
        def __getitem__(self, place: object) -> object:  # type: ignore[override]
            read.append(place.start if isinstance(place, slice) else place)  # type: ignore
            return super().__getitem__(place)  # type: ignore[index]

    keys = keys_of(index, tokens)
    last = index.insert(keys, tokens, blocks, 17)
    last = index.insert(keys, Blocks(tokens), blocks, 18, last)
    assert read == [17 * SIZE]
    assert last is not None
    assert last.block == blocks[17]
    assert find(index, tokens) == blocks


def test_a_chain_of_which_the_last_known_block_was_evicted_is_mended(
    manager: BlockManager,
) -> None:
    index = PrefixIndex(manager)
    tokens = list(range(5 * SIZE))
    add(index, manager, tokens[: 2 * SIZE])
    blocks = manager.allocate(5)  # the same content again: what is cached stays in other blocks
    keys = keys_of(index, tokens)
    last = index.insert(keys, tokens, blocks, 2)
    assert index.evict(2) == 2
    index.insert(keys, tokens, blocks, 5, last)
    assert find(index, tokens) == blocks
    manager.release(blocks)
    index.clear()
    assert manager.num_free == 20
