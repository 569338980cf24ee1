"""kv_write, copy_blocks and gather_blocks: each byte where it belongs, and no other touched."""

from __future__ import annotations

import pytest

from metal import page_moves, softmetal
from metal.attention_case import SHADERS, Programs
from metal.formats import PAIRS
from metal.page_moves import COPIES, GATHER_BLOCK_SIZES, GATHER_SIZES, WRITE_LAYOUTS, WRITE_SIZES
from pamx.errors import NativeError
from pamx.native.launch import Kernel, LaunchShape, launch_of

PROGRAMS = Programs()


def run_and_check(move: page_moves.Move, order: int) -> None:
    PROGRAMS.execute(launch_of(move.shape), move.buffers, order)
    move.check()


@pytest.mark.parametrize(("by_head", "gap"), WRITE_LAYOUTS)
@pytest.mark.parametrize(("kv_heads", "k_dim", "v_dim", "tokens"), WRITE_SIZES)
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
    move = page_moves.kv_write(pair, kv_heads, k_dim, v_dim, tokens, by_head, gap)
    run_and_check(move, order=tokens)


@pytest.mark.parametrize(("pairs", "block_bytes"), COPIES)
def test_blocks_are_copied_and_the_rest_is_left_alone(
    pairs: list[tuple[int, int]], block_bytes: int
) -> None:
    run_and_check(page_moves.copy_blocks(pairs, block_bytes), order=3)


@pytest.mark.parametrize("block_size", GATHER_BLOCK_SIZES)
@pytest.mark.parametrize(("tokens", "token_bytes"), GATHER_SIZES)
def test_a_sequence_is_gathered_in_order(block_size: int, tokens: int, token_bytes: int) -> None:
    run_and_check(page_moves.gather_blocks(block_size, tokens, token_bytes), order=tokens)


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
