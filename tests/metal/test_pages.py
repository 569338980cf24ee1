"""kv_write, copy_blocks and gather_blocks: each byte where it belongs, and no other touched."""

from __future__ import annotations

import numpy as np
import pytest

from metal import softmetal
from metal.arguments import COPY_BLOCKS, GATHER_BLOCKS, KV_WRITE, struct
from metal.attention_case import SHADERS, Programs, lay_out
from metal.formats import PAIRS, STORAGE, Bits, Floats, poison, to_bits
from pamx.errors import NativeError
from pamx.native.launch import Kernel, LaunchShape, launch_of

PROGRAMS = Programs()
BLOCK_SIZE = 8


def floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Every kind of finite float32, and many that lie halfway between two 16-bit values."""
    bits = rng.integers(0, 2**32, shape, np.uint32)
    ties = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    ties = np.where(rng.random(shape) < 0.5, ties & 0xFFFF0000 | 0x8000, ties & 0xFFFFE000 | 0x1000)
    values = np.where(rng.random(shape) < 0.5, bits, ties).view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(-0.0))


@pytest.mark.parametrize(("by_head", "gap"), [(False, 0), (False, 3), (True, 8), (True, 3)])
@pytest.mark.parametrize(
    ("kv_heads", "k_dim", "v_dim", "tokens"), [(1, 8, 8, 1), (3, 40, 64, 9), (2, 512, 256, 3)]
)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_new_rows_are_written_to_their_slots(
    pair: tuple[str, str],
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    tokens: int,
    by_head: bool,
    gap: int,
) -> None:
    dtype, pool_dtype = pair
    rng = np.random.default_rng(k_dim)
    blocks = 3
    slots = rng.permutation(blocks * BLOCK_SIZE)[:tokens].astype(np.int64)
    if tokens > 1:
        slots[1] = -1  # padding
    shape = LaunchShape(
        Kernel.KV_WRITE,
        dtype,
        pool_dtype,
        kv_heads=kv_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        tokens=tokens,
    )
    fields = {"tokens": tokens, "kv_heads": kv_heads, "k_dim": k_dim, "v_dim": v_dim}
    buffers: dict[int, Bits] = {4: slots}
    expected = {}
    for i, (name, dim) in enumerate([("key", k_dim), ("value", v_dim)]):
        rows = new_rows(rng, (tokens, kv_heads, dim), dtype)
        buffers[i], token_stride, head_stride = lay_out(rows, by_head, gap)
        fields |= {f"{name}_token_stride": token_stride, f"{name}_head_stride": head_stride}
        buffers[2 + i] = poison((blocks * BLOCK_SIZE, kv_heads, dim), pool_dtype)
        expected[2 + i] = buffers[2 + i].copy()
        kept = rows if dtype == pool_dtype else to_bits(rows, pool_dtype)
        expected[2 + i][slots[slots >= 0]] = kept[slots >= 0]
    buffers[5] = struct(KV_WRITE, **fields)
    PROGRAMS.execute(launch_of(shape), buffers, order=tokens)
    for i, pool in expected.items():
        np.testing.assert_array_equal(buffers[i].view(np.uint8), pool.view(np.uint8))


def new_rows(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Bits:
    """Rows of the pool's own type are any bits, NaN with payloads too."""
    if dtype == "float32":
        return floats(rng, shape)
    return rng.integers(0, 2**16, shape, np.uint16).view(STORAGE[dtype])


@pytest.mark.parametrize(
    ("pairs", "block_bytes"), [([(0, 3)], 16), ([(4, 0), (4, 2), (1, 5)], 16 * 300)]
)
def test_blocks_are_copied_and_the_rest_is_left_alone(
    pairs: list[tuple[int, int]], block_bytes: int
) -> None:
    pool = np.random.default_rng(0).integers(0, 256, (6, block_bytes), np.uint8)
    expected = pool.copy()
    for source, target in pairs:
        expected[target] = pool[source]
    shape = LaunchShape(Kernel.COPY_BLOCKS, tokens=len(pairs), block_bytes=block_bytes)
    params = struct(COPY_BLOCKS, pairs=len(pairs), block_bytes=block_bytes)
    PROGRAMS.execute(launch_of(shape), {0: pool, 1: np.array(pairs, np.int32), 2: params}, order=3)
    np.testing.assert_array_equal(pool, expected)


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize(("tokens", "token_bytes"), [(1, 16), (33, 96), (40, 16 * 70)])
def test_a_sequence_is_gathered_in_order(block_size: int, tokens: int, token_bytes: int) -> None:
    rng = np.random.default_rng(tokens)
    needed = -(-tokens // block_size)
    pool = rng.integers(0, 256, (needed + 2, block_size, token_bytes), np.uint8)
    table = rng.permutation(needed + 2)[:needed].astype(np.int32)
    out = poison((tokens, token_bytes // 4), "float32")
    shape = LaunchShape(Kernel.GATHER_BLOCKS, tokens=tokens, block_bytes=token_bytes)
    params = struct(GATHER_BLOCKS, tokens=tokens, block_size=block_size, token_bytes=token_bytes)
    PROGRAMS.execute(launch_of(shape), {0: pool, 1: table, 2: out, 3: params}, order=tokens)
    expected = pool[table].reshape(-1, token_bytes)[:tokens]
    np.testing.assert_array_equal(out.view(np.uint8).reshape(tokens, -1), expected)


def test_they_are_metal() -> None:
    shape = {"kv_heads": 1, "k_dim": 64, "v_dim": 64, "tokens": 1, "block_bytes": 16}
    writes = [launch_of(LaunchShape(Kernel.KV_WRITE, *pair, **shape)) for pair in PAIRS]
    softmetal.check(SHADERS / "kv_write.metal", instantiations=[w.instantiation for w in writes])
    for source in ("copy_blocks.metal", "gather_blocks.metal"):
        softmetal.check(SHADERS / source, instantiations=[])


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (LaunchShape(Kernel.COPY_BLOCKS, tokens=1, block_bytes=24), "24 bytes are not a multiple"),
        (LaunchShape(Kernel.GATHER_BLOCKS, tokens=0, block_bytes=16), "nothing to move"),
        (
            LaunchShape(Kernel.KV_WRITE, kv_heads=1, k_dim=12, v_dim=8, tokens=1),
            "head dims 12 and 8 are not multiples of 8",
        ),
        (
            LaunchShape(Kernel.KV_WRITE, "bfloat16", kv_heads=1, k_dim=8, v_dim=8, tokens=1),
            "f16 pools do not go with bf16 rows",
        ),
    ],
)
def test_what_cannot_be_moved_is_turned_down(shape: LaunchShape, why: str) -> None:
    with pytest.raises(NativeError, match=why):
        launch_of(shape)
