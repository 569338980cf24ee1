"""The stand-alone layer, on both backends: the oracle's numbers, forks, and poisoned pages."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Case, attention

from pamx.attention.backend import backend_named
from pamx.attention.layer import PagedAttentionLayer
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.errors import BlockTableError, NativeError
from pamx.kv import BlockCopy, BlockManager, BlockTable
from pamx.kv.pool import BlockPool, LayerGeometry

BACKENDS = ["native-cpu", "mlx"]


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.sampled_from(BACKENDS),
    contexts=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    group=st.sampled_from([1, 3, 4]),
    dim=st.sampled_from([16, 64, 80]),
    size=st.sampled_from([8, 16, 32]),
    window=st.sampled_from([None, 5, 16]),
    softcap=st.sampled_from([0.0, 3.0]),
    sinks=st.booleans(),
    data=st.data(),
)
def test_both_backends_equal_the_oracle(
    kernel: str,
    contexts: list[int],
    group: int,
    dim: int,
    size: int,
    window: int | None,
    softcap: float,
    sinks: bool,
    data: st.DataObject,
) -> None:
    queries = [data.draw(st.integers(1, n)) for n in contexts]
    step = Case(
        contexts,
        queries,
        2 * group,
        2,
        dim,
        dim,
        size,
        window=window,
        softcap=softcap,
        sinks=sinks,
        seed=data.draw(st.integers(0, 1000)),
    ).build()
    layer = PagedAttentionLayer(
        num_blocks=step.num_blocks,
        block_size=size,
        kv_heads=2,
        head_dim=dim,
        window=window,
        softcap=softcap,
        backend=backend_named(kernel),
    )
    layer.pool.keys, layer.pool.values = mx.array(step.key_pool), mx.array(step.value_pool)
    mx.eval(layer.pool.keys, layer.pool.values)
    out = layer(
        *(mx.array(a) for a in (step.queries, step.keys, step.values)),
        [
            SequenceSlice([int(b) for b in table[: -(-n // size)]], n, q)
            for table, n, q in zip(step.block_tables, contexts, queries, strict=True)
        ],
        sinks=None if step.sinks is None else mx.array(step.sinks),
    )
    np.testing.assert_allclose(np.array(out), step.expected(), atol=1e-5)
    for found, expected in zip(
        (layer.pool.keys, layer.pool.values), step.expected_pools(), strict=True
    ):
        np.testing.assert_array_equal(np.array(found), expected)


@pytest.mark.parametrize("kernel", BACKENDS)
def test_a_fork_writes_beside_its_parent_and_freed_pages_are_never_read(kernel: str) -> None:
    """Two sequences share a prompt, then differ; whatever is free holds NaN all the time."""
    rng = np.random.default_rng(1)
    backend = backend_named(kernel)
    size, kv_heads, dim = 8, 2, 16
    manager = BlockManager(12, size)
    pool = BlockPool([LayerGeometry(kv_heads, dim, dim, mx.float32)], 12, size, backend.storage)
    (layer,) = pool.layers

    def poison() -> None:
        for block in range(manager.num_blocks):
            if manager.references(block) == 0:
                layer.keys[block] = mx.nan
                layer.values[block] = mx.nan
        mx.eval(layer.keys, layer.values)

    def extend(table: BlockTable, history: list[np.ndarray], tokens: int) -> None:
        pool.copy(table.grow(tokens))
        q = rng.standard_normal((tokens, 4, dim)).astype(np.float32)
        k, v = (rng.standard_normal((tokens, kv_heads, dim)).astype(np.float32) for _ in "kv")
        history[0] = np.concatenate([history[0], k])
        history[1] = np.concatenate([history[1], v])
        part = SequenceSlice(tuple(table.blocks), table.num_tokens, tokens)
        out = backend.attend(
            Step([part], Packing.ROWS, pool.num_blocks, size),
            layer,
            *(mx.array(a)[:, :, None] for a in (q, k, v)),
            scale=0.25,
        )
        expected = attention(
            q.astype(float), history[0].astype(float), history[1].astype(float), scale=0.25
        )
        np.testing.assert_allclose(np.array(out[:, :, 0]), expected, atol=1e-5)

    empty = np.zeros((0, kv_heads, dim), np.float32)
    parent, parent_rows = BlockTable(manager), [empty, empty]
    poison()
    extend(parent, parent_rows, 19)
    child, child_rows = parent.fork(), list(parent_rows)
    for table, rows, tokens in (
        (child, child_rows, 3),
        (parent, parent_rows, 1),
        (child, child_rows, 9),
        (parent, parent_rows, 12),
    ):
        poison()
        extend(table, rows, tokens)
    parent.close()
    poison()
    extend(child, child_rows, 6)
    child.close()
    assert manager.num_free == 12


def test_copying_blocks_copies_every_layer() -> None:
    pool = BlockPool([LayerGeometry(1, 8, 16, mx.float16)] * 2, 3, 8)
    for index, layer in enumerate(pool.layers):
        layer.keys[0] = layer.values[0] = index + 1
    pool.copy([BlockCopy(0, 2)])
    for index, layer in enumerate(pool.layers):
        for pages in (layer.keys, layer.values):
            assert [pages[b].max().item() for b in range(3)] == [index + 1, 0, index + 1]
    assert pool.nbytes == 2 * 3 * 8 * (8 + 16) * 2


def test_the_self_test_notices_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from pamx.attention import selftest

    for kernel in BACKENDS:
        assert selftest.run(kernel).passed
    monkeypatch.setattr(selftest, "TOLERANCE", 1e-9)
    assert not selftest.run("mlx").passed


@pytest.mark.parametrize("kernel", BACKENDS)
@pytest.mark.parametrize("blocks", [[9], [-1], [1000], []])
def test_a_block_outside_the_pool_is_an_error_on_every_backend(
    kernel: str, blocks: list[int]
) -> None:
    layer = PagedAttentionLayer(
        num_blocks=4, block_size=8, kv_heads=1, head_dim=8, backend=backend_named(kernel)
    )
    row = mx.ones((1, 1, 8))
    with pytest.raises((NativeError, BlockTableError)):
        mx.eval(layer(row, row, row, [SequenceSlice(blocks, 1, 1)]))
