"""Typed wrappers of the native calls that take MLX arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pamx.native.loader import check, library
from pamx.native.whole_numbers import int32

Int32Array = npt.NDArray[np.int32]


class NativeBatch:
    """A validated batch of packed sequences on the native side; see pamx_batch_desc.

    Args:
        query_starts: [sequences + 1], from 0, strictly increasing (the field's `cu_seqlens`).
        context_lens: [sequences], tokens of each sequence with the new ones.
        block_tables: [sequences, max_blocks], ids of blocks in the pool.
        num_blocks: blocks in the pool.
        block_size: tokens a block.

    Raises:
        NativeError: the tables are inconsistent or point outside the pool.
        ValueError: the shapes do not fit each other, or a number is no int32.
    """

    def __init__(
        self,
        query_starts: Int32Array,
        context_lens: Int32Array,
        block_tables: Int32Array,
        num_blocks: int,
        block_size: int,
    ) -> None:
        native = library()
        ffi = native.ffi
        starts = _int32s("query_starts", query_starts)
        lens = _int32s("context_lens", context_lens)
        tables = _int32s("block_tables", block_tables)
        if tables.ndim != 2 or len(tables) != len(lens) or len(starts) != len(lens) + 1:
            raise ValueError(
                f"query_starts {starts.shape}, context_lens {lens.shape} and block_tables "
                f"{tables.shape} do not describe the same number of sequences"
            )
        desc = ffi.new("pamx_batch_desc*")
        desc.num_sequences = len(lens)
        desc.num_blocks = int32("num_blocks", num_blocks)
        desc.block_size = int32("block_size", block_size)
        desc.max_blocks = tables.shape[1]
        desc.query_starts = ffi.from_buffer("int32_t[]", starts)
        desc.context_lens = ffi.from_buffer("int32_t[]", lens)
        desc.block_tables = ffi.from_buffer("int32_t[]", tables)
        handle = ffi.new("pamx_batch**")
        check(native, native.lib.pamx_batch_create(desc, handle))
        self.handle = ffi.gc(handle[0], native.lib.pamx_batch_free)


def _int32s(name: str, numbers: npt.NDArray[Any]) -> Int32Array:
    """`numbers`, contiguous; those that another dtype holds must be int32 all the same."""
    array = np.asarray(numbers)
    if array.dtype != np.int32:
        with np.errstate(invalid="ignore"):  # of what is no number
            narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise ValueError(f"{name} must be whole numbers that an int32 holds")
        array = narrow
    return np.ascontiguousarray(array)


_ARRAY_NAMES = ("queries", "keys", "values", "key_pool", "value_pool", "sinks")
_OPTIONAL = ("keys", "values", "sinks")


@functools.lru_cache(maxsize=256)
def _params(scale: float, softcap: float, window: int) -> Any:
    params = library().ffi.new("pamx_attention_params*")
    params.scale, params.softcap, params.window = scale, softcap, window
    return params


def paged_attention(
    batch: NativeBatch,
    queries: mx.array,
    keys: mx.array | None,
    values: mx.array | None,
    key_pool: mx.array,
    value_pool: mx.array,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """Writes new K/V rows into the pools in place and attends, as one lazy operation.

    Args:
        batch: The step's sequences.
        queries: [batch, heads, length, k_dim], where batch or length is 1.
        keys: [batch, kv_heads, length, k_dim], or None to attend without writing.
        values: [batch, kv_heads, length, v_dim], or None.
        key_pool: [num_blocks, block_size, kv_heads, k_dim].
        value_pool: [num_blocks, block_size, kv_heads, v_dim].
        scale: Multiplies the scores.
        softcap: 0 for none; else scores become softcap * tanh(score / softcap).
        window: None for none; else a query sees this many positions, its own included.
        sinks: [heads] logits that take part in the softmax without a value, or None.

    Returns:
        The output [batch, heads, length, v_dim] in the queries' dtype, and the two pools to use
        from now on; they share the buffers of the pools given.

    Raises:
        NativeError: a shape, dtype or table is wrong, or no kernel serves this device.
    """
    native = library()
    arrays = (queries, keys, values, key_pool, value_pool, sinks)
    for name, array in zip(_ARRAY_NAMES, arrays, strict=True):
        # The library trusts that an address is an array's, so nothing else may reach it.
        if not isinstance(array, mx.array) and not (array is None and name in _OPTIONAL):
            raise TypeError(f"{name} must be an mlx.core.array, not {type(array).__name__}")
    # Placeholders that the call turns into its results. Every object stays in a local: the
    # library sees only their addresses.
    out, new_keys, new_values = native.blank(), native.blank(), native.blank()
    status = native.lib.pamx_paged_attention(
        batch.handle,
        _params(scale, softcap, window or 0),
        id(queries),
        0 if keys is None else id(keys),
        0 if values is None else id(values),
        id(key_pool),
        id(value_pool),
        0 if sinks is None else id(sinks),
        id(out),
        id(new_keys),
        id(new_values),
    )
    check(native, status)
    return out, new_keys, new_values


def copy_blocks(
    sources: Sequence[int], targets: Sequence[int], key_pool: mx.array, value_pool: mx.array
) -> tuple[mx.array, mx.array]:
    """Copies whole blocks of both pools, in order and in place, as one lazy operation.

    Args:
        sources, targets: Block ids; block sources[i] goes to targets[i].
        key_pool, value_pool: [num_blocks, block_size, kv_heads, dim].

    Returns:
        The pools to use from now on.

    Raises:
        NativeError: an id is not in the pool, or no kernel serves this device.
        ValueError: sources and targets differ in number, or an id is no int32.
    """
    native = library()
    if not isinstance(key_pool, mx.array) or not isinstance(value_pool, mx.array):
        raise TypeError("key_pool and value_pool must be mlx.core.arrays")
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets")
    from_ids = native.ffi.new("int32_t[]", [int32("a source", i) for i in sources])
    to_ids = native.ffi.new("int32_t[]", [int32("a target", i) for i in targets])
    keys, values = native.blank(), native.blank()
    status = native.lib.pamx_copy_blocks(
        from_ids, to_ids, len(sources), id(key_pool), id(value_pool), id(keys), id(values)
    )
    check(native, status)
    return keys, values


def empty(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """An array of memory that nobody has touched yet, for block pools.

    Raises:
        NativeError: there is no such memory, or no kernel serves MLX's default device.
        ValueError: a dimension is no int32.
    """
    native = library()
    dtype_of, out = mx.array(0, dtype), native.blank()
    dims = native.ffi.new("int32_t[]", [int32("a dimension", n) for n in shape])
    check(native, native.lib.pamx_empty(dims, len(shape), id(dtype_of), id(out)))
    return out
