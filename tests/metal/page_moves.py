"""What kv_write, copy_blocks and gather_blocks should do to their buffers, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from metal.arguments import COPY_BLOCKS, GATHER_BLOCKS, KV_WRITE, struct
from metal.attention_case import lay_out
from metal.formats import PAIRS, STORAGE, Bits, Floats, poison, to_bits
from pamx.native.launch import Kernel, LaunchShape

WRITE_LAYOUTS = [(False, 0), (False, 3), (True, 8), (True, 3)]  # by head, gap
WRITE_SIZES = [(1, 8, 8, 1), (3, 40, 64, 9), (2, 512, 256, 3)]  # KV heads, k_dim, v_dim, tokens
COPIES = [([(0, 3)], 16), ([(4, 0), (4, 2), (1, 5)], 16 * 300)]  # pairs, bytes of a block
GATHER_BLOCK_SIZES = [8, 16, 32]
GATHER_SIZES = [(1, 16), (33, 96), (40, 16 * 70)]  # tokens, bytes of one
BLOCK_SIZE = 8  # tokens, of the pools that kv_write writes


@dataclass
class Move:
    """A launch, its buffers, and what those that it writes hold afterwards."""

    shape: LaunchShape
    buffers: dict[int, Bits]
    expected: dict[int, Bits]

    def check(self) -> None:
        """Once it ran: each byte where it belongs, and no other touched.

        Raises:
            AssertionError: a byte is wrong.
        """
        for i, expected in self.expected.items():
            np.testing.assert_array_equal(
                self.buffers[i].reshape(-1).view(np.uint8), expected.reshape(-1).view(np.uint8)
            )


def kv_write(
    pair: tuple[str, str],
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    tokens: int,
    by_head: bool,
    gap: int,
) -> Move:
    """New rows to their slots, the second token being padding."""
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
    return Move(shape, buffers, expected)


def new_rows(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Bits:
    """Rows of the pool's own type are any bits, NaN with payloads too."""
    if dtype == "float32":
        return floats(rng, shape)
    return rng.integers(0, 2**16, shape, np.uint16).view(STORAGE[dtype])


def floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Every kind of finite float32, and many that lie halfway between two 16-bit values."""
    bits = rng.integers(0, 2**32, shape, np.uint32)
    ties = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    ties = np.where(rng.random(shape) < 0.5, ties & 0xFFFF0000 | 0x8000, ties & 0xFFFFE000 | 0x1000)
    values = np.where(rng.random(shape) < 0.5, bits, ties).view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(-0.0))


def copy_blocks(pairs: list[tuple[int, int]], block_bytes: int) -> Move:
    """Whole blocks inside a pool; the rest is left alone."""
    pool = np.random.default_rng(0).integers(0, 256, (6, block_bytes), np.uint8)
    expected = pool.copy()
    for source, target in pairs:
        expected[target] = pool[source]
    shape = LaunchShape(Kernel.COPY_BLOCKS, tokens=len(pairs), block_bytes=block_bytes)
    params = struct(COPY_BLOCKS, pairs=len(pairs), block_bytes=block_bytes)
    return Move(shape, {0: pool, 1: np.array(pairs, np.int32), 2: params}, {0: expected})


def gather_blocks(block_size: int, tokens: int, token_bytes: int) -> Move:
    """A sequence, in order."""
    rng = np.random.default_rng(tokens)
    needed = -(-tokens // block_size)
    pool = rng.integers(0, 256, (needed + 2, block_size, token_bytes), np.uint8)
    table = rng.permutation(needed + 2)[:needed].astype(np.int32)
    out = poison((tokens, token_bytes // 4), "float32")
    shape = LaunchShape(Kernel.GATHER_BLOCKS, tokens=tokens, block_bytes=token_bytes)
    params = struct(GATHER_BLOCKS, tokens=tokens, block_size=block_size, token_bytes=token_bytes)
    expected = pool[table].reshape(-1, token_bytes)[:tokens]
    return Move(shape, {0: pool, 1: table, 2: out, 3: params}, {2: expected})


def moves() -> Iterator[Move]:
    """Every specialisation, in every layout."""
    for pair, size, layout in product(PAIRS, WRITE_SIZES, WRITE_LAYOUTS):
        yield kv_write(pair, *size, *layout)
    for pairs, block_bytes in COPIES:
        yield copy_blocks(pairs, block_bytes)
    for block_size, size in product(GATHER_BLOCK_SIZES, GATHER_SIZES):
        yield gather_blocks(block_size, *size)
