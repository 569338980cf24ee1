"""Whatever a caller gets wrong, the C boundary answers with an error and a message."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from pamx.errors import NativeError
from pamx.native.dispatch import set_dispatch_diagnostics
from pamx.native.loader import library
from pamx.native.ops import NativeBatch, empty, paged_attention

BLOCKS, SIZE, KV_HEADS, HEADS, DIM = 6, 8, 2, 4, 16


def batch(
    starts: list[int] = [0, 3],  # noqa: B006
    lens: list[int] = [11],  # noqa: B006
    tables: list[list[int]] = [[4, 1]],  # noqa: B006
    num_blocks: int = BLOCKS,
    block_size: int = SIZE,
) -> NativeBatch:
    return NativeBatch(
        np.array(starts, np.int32),
        np.array(lens, np.int32),
        np.array(tables, np.int32),
        num_blocks,
        block_size,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tables": [[4, 6]]}, "holds block 6 at index 1; the pool has blocks 0 to 5"),
        ({"tables": [[-1, 1]]}, "holds block -1 at index 0"),
        ({"tables": [[4, 4]]}, "holds block 4 twice"),
        ({"tables": [[4]]}, "needs 2 blocks but its block table has room for 1"),
        ({"lens": [-5]}, "-5 tokens long"),
        ({"lens": [2]}, "2 tokens long but brings 3 query tokens"),
        ({"starts": [0, 0]}, "0 query tokens"),
        ({"starts": [0, -2]}, "-2 query tokens"),
        ({"starts": [1, 3]}, "must begin at 0"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"block_size": 12}, "block_size must be 8, 16 or 32, not 12"),
        ({"lens": [2**31 - 1]}, "needs 268435456 blocks"),
        (
            {"starts": [0, 3, 4], "lens": [11, 9], "tables": [[4, 1], [0, 1]]},
            "block 1 is shared by sequence 0 and sequence 1 while one of them writes it",
        ),
        (
            {"starts": [0, 3, 4], "lens": [11, 17], "tables": [[4, 1, 0], [1, 2, 3]]},
            "block 1 is shared",
        ),
    ],
)
def test_wrong_batches(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        batch(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["query_starts", "context_lens", "block_tables"])
@pytest.mark.parametrize("wrong", [2**32 + 1, -(2**33), 1.5, float("nan")])
def test_numbers_that_are_no_int32_are_refused_and_not_cut_off(name: str, wrong: float) -> None:
    numbers = {"query_starts": [0, 1], "context_lens": [1], "block_tables": [[1]]}
    arrays = {n: np.array(v) for n, v in numbers.items()}
    NativeBatch(**arrays, num_blocks=4, block_size=8)
    arrays[name] = np.full_like(arrays[name], wrong, dtype=type(wrong))
    with pytest.raises(ValueError, match=f"{name} must be whole numbers that an int32 holds"):
        NativeBatch(**arrays, num_blocks=4, block_size=8)


@pytest.mark.parametrize(("name", "value"), [("num_blocks", 2**31), ("block_size", 8.0)])
def test_a_pool_of_no_int32_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        batch(**{name: value})  # type: ignore[arg-type]


def test_full_blocks_may_be_shared_for_reading() -> None:
    batch(starts=[0, 3, 4], lens=[11, 9], tables=[[4, 1], [4, 2]])


def rows(heads: int, tokens: int = 3, dim: int = DIM, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.ones((1, heads, tokens, dim), dtype)


def pool(dim: int = DIM, dtype: mx.Dtype = mx.float32, shape: tuple[int, ...] = ()) -> mx.array:
    array = mx.zeros(shape or (BLOCKS, SIZE, KV_HEADS, dim), dtype)
    mx.eval(array)
    return array


def strided_pool() -> mx.array:
    array = mx.zeros((SIZE, BLOCKS, KV_HEADS, DIM)).swapaxes(0, 1)
    mx.eval(array)
    return array


WRONG_ARRAYS: list[tuple[str, Callable[[], mx.array | None], str]] = [
    ("queries", lambda: rows(HEADS, dtype=mx.float16), "pools are float32"),
    ("queries", lambda: rows(HEADS, dtype=mx.bfloat16), "the queries are bfloat16"),
    ("queries", lambda: rows(HEADS).astype(mx.int32), "queries are int32"),
    ("queries", lambda: rows(3), "3 query heads are not a multiple of 2 KV heads"),
    ("queries", lambda: rows(HEADS, tokens=4), "queries hold 4 tokens, the batch 3"),
    ("queries", lambda: rows(HEADS, dim=24), "queries have head size 24, key_pool 16"),
    ("queries", lambda: mx.ones((3, HEADS, DIM)), "queries have shape"),
    ("queries", lambda: mx.ones((2, HEADS, 3, DIM)), "queries have shape"),
    ("keys", lambda: rows(KV_HEADS, dtype=mx.bfloat16), "keys is bfloat16"),
    ("keys", lambda: rows(KV_HEADS + 1), "keys has shape"),
    ("keys", lambda: None, "keys and values come together"),
    ("values", lambda: rows(KV_HEADS, tokens=2), "values has shape"),
    ("key_pool", lambda: pool(shape=(BLOCKS + 1, SIZE, KV_HEADS, DIM)), "the batch needs"),
    ("key_pool", lambda: pool(dim=12), "multiple of 8 up to 512, not 12"),
    ("key_pool", lambda: pool(dim=520), "multiple of 8 up to 512, not 520"),
    ("key_pool", lambda: pool(dtype=mx.float16), "the pools are float16 and float32"),
    ("key_pool", strided_pool, "key_pool is not row-contiguous"),
    ("key_pool", lambda: pool() + 1, "key_pool is not evaluated"),
    ("value_pool", lambda: pool(shape=(BLOCKS, SIZE, 1, DIM)), "2 and 1 KV heads"),
    ("value_pool", lambda: pool(shape=(BLOCKS, SIZE, KV_HEADS * DIM)), "value_pool has shape"),
    ("sinks", lambda: mx.ones((3,)), "sinks have shape"),
    ("sinks", lambda: mx.ones((HEADS,), mx.int32), "dtype int32"),
]


@pytest.mark.parametrize(("name", "make", "message"), WRONG_ARRAYS)
def test_wrong_arrays(name: str, make: Callable[[], mx.array | None], message: str) -> None:
    arrays: dict[str, mx.array | None] = {
        "queries": rows(HEADS),
        "keys": rows(KV_HEADS),
        "values": rows(KV_HEADS),
        "key_pool": pool(),
        "value_pool": pool(),
        "sinks": None,
    }
    sinks = arrays.pop("sinks")
    if name == "sinks":
        sinks = make()
    else:
        arrays[name] = make()
    with pytest.raises(NativeError, match=message):
        paged_attention(batch(), **arrays, scale=1.0, sinks=sinks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scale": float("nan")}, "scale is not finite"),
        ({"scale": 1.0, "softcap": -1.0}, "softcap"),
        ({"scale": 1.0, "window": -1}, "window"),
    ],
)
def test_wrong_numbers(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        paged_attention(
            batch(),
            rows(HEADS),
            rows(KV_HEADS),
            rows(KV_HEADS),
            pool(),
            pool(),
            **wrong,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("thing", [np.zeros(3), 7, "text", [1, 2], None, object()])
def test_only_mlx_arrays_pass_the_bridge(thing: object) -> None:
    with pytest.raises(TypeError, match=r"queries must be an mlx\.core\.array"):
        paged_attention(
            batch(),
            thing,
            rows(KV_HEADS),
            rows(KV_HEADS),
            pool(),
            pool(),
            scale=1.0,  # type: ignore[arg-type]
        )


def test_null_pointers_and_foreign_objects_at_the_c_interface() -> None:
    native = library()
    ffi, lib = native.ffi, native.lib
    foreign = object()
    array = mx.array([1.0])
    params = ffi.new("pamx_attention_params*", {"scale": 1.0})
    shape = ffi.new("int32_t[]", [1])
    calls = [
        lambda: lib.pamx_batch_create(ffi.NULL, ffi.new("pamx_batch**")),
        lambda: lib.pamx_batch_create(ffi.new("pamx_batch_desc*"), ffi.NULL),
        lambda: lib.pamx_batch_create(
            ffi.new("pamx_batch_desc*", [1, 1, 8, 1]), ffi.new("pamx_batch**")
        ),
        lambda: lib.pamx_paged_attention(ffi.NULL, params, *[id(array)] * 9),
        lambda: lib.pamx_paged_attention(batch().handle, ffi.NULL, *[id(array)] * 9),
        lambda: lib.pamx_paged_attention(batch().handle, params, *[0] * 9),
        lambda: lib.pamx_paged_attention(batch().handle, params, *[id(foreign)] * 9),
        lambda: lib.pamx_paged_attention(batch().handle, params, *[id(int)] * 9),
        lambda: lib.pamx_bridge_configure(0, 48),
        lambda: lib.pamx_bridge_configure(16, 4),
        lambda: lib.pamx_bridge_probe(0, 0, 1, shape, 4),
        lambda: lib.pamx_bridge_probe(id(array), 0, 1, ffi.NULL, 4),
        lambda: lib.pamx_empty(ffi.NULL, 1, id(array), id(array)),
        lambda: lib.pamx_set_num_threads(0),
        lambda: lib.pamx_set_num_threads(-3),
    ]
    for call in calls:
        assert call() == lib.PAMX_INVALID_ARGUMENT
        assert len(ffi.string(lib.pamx_last_error())) > 10
    lib.pamx_batch_free(ffi.NULL)
    lib.pamx_parallel(4, ffi.NULL, ffi.NULL)
    assert array.item() == 1.0


def test_the_last_dispatch_without_a_place_for_it() -> None:
    native = library()
    before = set_dispatch_diagnostics(True)
    try:
        paged_attention(
            batch(), rows(HEADS), rows(KV_HEADS), rows(KV_HEADS), pool(), pool(), scale=1.0
        )
        assert native.lib.pamx_last_dispatch(native.ffi.NULL, native.ffi.NULL) == 1
    finally:
        set_dispatch_diagnostics(before)


def test_the_probe_refuses_what_is_not_the_array_it_was_told_of() -> None:
    native = library()
    ffi, lib = native.ffi, native.lib
    array = mx.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    mx.eval(array)
    address = np.array(array, copy=False).ctypes.data
    shape = ffi.new("int32_t[]", [2, 3])
    assert lib.pamx_bridge_probe(id(array), address, 2, shape, 4) == lib.PAMX_OK
    wrong_shape = ffi.new("int32_t[]", [3, 2])
    for thing, where, dims, item in [
        (array, address + 4, shape, 4),
        (array, address, wrong_shape, 4),
        (array, address, shape, 2),
        (object(), address, shape, 4),
        ("text", address, shape, 4),
        ([1, 2, 3], address, shape, 4),
        (np.zeros(3), address, shape, 4),
        (int, address, shape, 4),
    ]:
        assert lib.pamx_bridge_probe(id(thing), where, 2, dims, item) == lib.PAMX_UNSUPPORTED


# The last is no memory that the system would find, and could be counted.
@pytest.mark.parametrize("shape", [(0,), (2, -1), (2**30, 2**30, 2**30), (2**30, 2**30)])
def test_impossible_sizes_of_untouched_memory(shape: tuple[int, ...]) -> None:
    with pytest.raises(NativeError):
        empty(shape, mx.float32)
