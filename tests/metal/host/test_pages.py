"""Copies of blocks and gathers through native/metal, on whole pools."""

from __future__ import annotations

import numpy as np
import pytest

from metal.host.library import Buffer, Metal, MetalError


def pool_of(metal: Metal, blocks: int = 700, size: int = 8, words: int = 4) -> Buffer:
    return Buffer(
        metal, np.arange(blocks * size * words, dtype=np.uint32).reshape(blocks, size, words)
    )


def test_copies_see_what_those_before_them_left(metal: Metal) -> None:
    """A chain through one block, a block that is read and then written, and a target twice."""
    pool = pool_of(metal, 12)
    sources, targets = [1, 2, 3, 7, 8, 5], [2, 3, 4, 8, 7, 2]
    expected = pool.array.copy()
    for source, target in zip(sources, targets, strict=True):
        expected[target] = expected[source]
    with metal.descending():
        metal.copy_blocks(pool, sources, targets)
    np.testing.assert_array_equal(pool.array, expected)


def test_more_copies_than_travel_with_one_command(metal: Metal) -> None:
    pool = pool_of(metal, 1300)
    order = np.random.default_rng(0).permutation(1300)
    sources, targets = order[:600].tolist(), order[600:1200].tolist()
    expected = pool.array.copy()
    expected[targets] = expected[sources]
    metal.copy_blocks(pool, sources, targets)
    np.testing.assert_array_equal(pool.array, expected)


@pytest.mark.parametrize("tokens", [1, 8, 21])
def test_gathers_a_sequence(metal: Metal, tokens: int) -> None:
    pool = pool_of(metal, 9)
    table = [4, 0, 7]
    found = metal.gather(pool, table, tokens)
    np.testing.assert_array_equal(found, pool.array[table].reshape(-1, 4)[:tokens])


def test_a_block_outside_the_pool_is_refused(metal: Metal) -> None:
    pool = pool_of(metal, 4)
    with pytest.raises(MetalError, match="block 4 is not in the pool of 4 blocks"):
        metal.copy_blocks(pool, [0], [4])
    with pytest.raises(MetalError, match="block 2 would be copied to itself"):
        metal.copy_blocks(pool, [2], [2])
    with pytest.raises(MetalError, match="block -1 is not in the pool"):
        metal.gather(pool, [-1], 3)
    with pytest.raises(MetalError, match="1 blocks hold fewer than 9 tokens"):
        metal.gather(pool, [1], 9)
