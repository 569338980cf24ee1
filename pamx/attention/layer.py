"""A stand-alone paged attention layer: one layer's pages and the attention over them."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from pamx.attention.backend import Backend, choose_backend
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.kv.pool import LayerGeometry, LayerPool


class PagedAttentionLayer:
    """Attention over a pool of pages, for code that is not an mlx-lm model.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens a block: 8, 16 or 32.
        kv_heads: KV heads.
        head_dim: Size of a key, a multiple of 8 up to 256.
        v_dim: Size of a value; None: `head_dim`.
        dtype: float32, float16 or bfloat16, of the pages and of all rows.
        scale: Multiplies the scores; None: head_dim ** -0.5.
        softcap: 0 for none; else scores become softcap * tanh(score / softcap).
        window: Positions that a query sees, its own included; None: all.
        backend: What computes; None: the best that serves this device.

    Attributes:
        pool: The pages; `pool.keys` and `pool.values` are
            [num_blocks, block_size, kv_heads, dim].
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        v_dim: int | None = None,
        dtype: mx.Dtype = mx.float32,
        scale: float | None = None,
        softcap: float = 0.0,
        window: int | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.backend = backend or choose_backend()
        geometry = LayerGeometry(kv_heads, head_dim, v_dim or head_dim, dtype, window)
        self.pool = LayerPool(geometry, num_blocks, block_size, self.backend.storage)
        self.scale = head_dim**-0.5 if scale is None else scale
        self.softcap = softcap

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array | None,
        values: mx.array | None,
        sequences: Sequence[SequenceSlice],
        *,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Writes new rows into the pages and attends causally; lazy.

        Args:
            queries: [tokens, heads, head_dim], the sequences' new tokens one after another.
            keys: [tokens, kv_heads, head_dim], or None to attend without writing.
            values: [tokens, kv_heads, v_dim], or None.
            sequences: Each sequence's blocks, context length and number of new tokens.
            sinks: [heads] attention sinks, or None.

        Returns:
            [tokens, heads, v_dim]

        Raises:
            NativeError, BlockTableError: shapes, dtypes or block tables do not fit together.
        """
        num_blocks, block_size = self.pool.keys.shape[:2]
        step = Step(sequences, Packing.ROWS, num_blocks, block_size)
        out = self.backend.attend(
            step,
            self.pool,
            queries[:, :, None],
            None if keys is None else keys[:, :, None],
            None if values is None else values[:, :, None],
            scale=self.scale,
            softcap=self.softcap,
            window=self.pool.geometry.window,
            sinks=sinks,
        )
        return out[:, :, 0]
