"""The cache that a model sees: mlx-lm's cache protocol over the block pool.

A layer's `update_and_fetch` only notes the new rows and hands back placeholders; the attention
call that follows (see `pamx.substitute.attention`) finds the cache by its placeholder, and one
fused operation writes the rows and attends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import _BaseCache

from pamx.attention import reference
from pamx.attention.backend import Backend
from pamx.attention.placeholders import (
    Placeholders,
    UnsupportedAttentionError,
    WindowMask,
)
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.kv.pool import LayerPool
from pamx.native.ops import NativeBatch


class AttentionBlock(Protocol):
    """A layer's attention from its input to the residual, or the whole layer; one lazy operation.

    Args:
        x: [1, tokens, hidden] or [tokens, 1, hidden].
        batch: The step's sequences.
        key_pool, value_pool: The layer's pages.
        window: Positions that a query sees, its own included; None: all.

    Returns:
        An array like x, and the pools to use from now on.
    """

    def __call__(
        self,
        x: mx.array,
        batch: NativeBatch,
        key_pool: mx.array,
        value_pool: mx.array,
        window: int | None = None,
    ) -> tuple[mx.array, mx.array, mx.array]: ...


class StepState:
    """The current step, shared by the caches of one model.

    Args:
        backend: Serves the attention calls.
        placeholders: Shared with the substituted attention calls.
        next_step: Called with (start, tokens) when a layer brings tokens past the current step;
            returns the step that holds them. None: steps are set by the engine alone.
        on_trim: Called after a layer has forgotten tokens.
    """

    def __init__(
        self,
        backend: Backend,
        placeholders: Placeholders,
        next_step: Callable[[int, int], Step] | None = None,
        on_trim: Callable[[], None] = lambda: None,
    ) -> None:
        self.backend = backend
        self.placeholders = placeholders
        self.explicit = next_step is None  # whether the engine sets the steps
        self.step: Step | None = None
        self.unattended: PagedKVCache | None = None  # holds rows that no attention call has taken
        self._next_step = next_step
        self._on_trim = on_trim

    def set_step(self, step: Step | None) -> None:
        self.step = step
        self.unattended = None
        self.placeholders.clear()

    def trimmed(self) -> None:
        self._on_trim()

    def step_for(self, start: int, tokens: int) -> Step:
        """The current step, or a new one that begins at `start`, for a layer's new tokens."""
        step = self.step
        if (
            step is not None
            and step.num_tokens == tokens
            and (self.explicit or step.start == start)
        ):
            return step
        if self._next_step is None:
            raise UnsupportedAttentionError(
                f"The model stored {tokens} tokens where the step has "
                f"{step.num_tokens if step else 0}."
            )
        step = self._next_step(start, tokens)
        self.set_step(step)
        return step


class PagedKVCache(_BaseCache):  # type: ignore[misc]  # mlx-lm has no types
    """One layer's cache over pages; give a list of them to a model in place of mlx-lm's own.

    Args:
        pool: The layer's pages.
        state: Shared with the model's other layers.
    """

    def __init__(self, pool: LayerPool, state: StepState) -> None:
        self._pool = pool
        self._shared = state
        self._end = 0  # tokens of the sequence that this layer holds (SEQUENCE packing)
        self._advanced_in: Step | None = None  # the step whose rows it has taken
        self._pending: tuple[mx.array, mx.array] | None = None
        self._placeholders: tuple[mx.array, mx.array] | None = None

    # ---- what models ask of a cache ---------------------------------------------------------

    @property
    def offset(self) -> int | mx.array:
        """Tokens before the next one: an int, or [tokens] in ROWS packing."""
        step = self._shared.step
        if step is None or not self._shared.explicit:
            return self._end
        advanced = self._advanced_in is step
        if step.packing is Packing.ROWS:
            return step.positions + 1 if advanced else step.positions
        return step.end if advanced else step.start

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Notes new rows [batch, kv_heads, length, dim]; returns placeholders for attention.

        The placeholders have the shape that a dense cache would return and no storage.
        """
        if self._shared.unattended is not None or self._shared.placeholders.closed:
            self._refuse_rows()
        if not self._shared.explicit and keys.shape[0] != 1:
            self._refuse_batch(keys.shape[0])
        step = self._shared.step_for(self._end, keys.shape[0] * keys.shape[2])
        self._pending = (keys, values)
        self._shared.unattended = self
        self._advanced_in = step
        batch, heads, length, _ = keys.shape
        if step.packing is Packing.SEQUENCE:
            self._end = length = step.end
        self._placeholders = tuple(  # type: ignore[assignment]
            # NaN: whoever reads them as if they were rows shall see it at once.
            mx.broadcast_to(mx.array(mx.nan, x.dtype), (batch, heads, length, x.shape[3]))
            for x in (keys, values)
        )
        assert self._placeholders is not None
        self._shared.placeholders.remember(self._placeholders[0], self)
        return self._placeholders

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """The placeholders again, for layers that share another layer's K and V."""
        if self._placeholders is None:
            raise UnsupportedAttentionError("The model reads a cache before it is filled.")
        return self._placeholders

    def make_mask(
        self, length: int, return_array: bool = False, window_size: int | None = None
    ) -> str | mx.array | None:
        """The causal mask for the next `length` tokens of this cache, as mlx-lm's caches do."""
        window = self._pool.geometry.window if window_size is None else window_size
        if return_array and length > 1:
            mask = create_causal_mask(length, self.offset, window_size=window)
            self._shared.placeholders.remember_mask(mask, window)
            return mask  # type: ignore[no-any-return]
        if window is None and (length == 1 or return_array):
            return None
        return WindowMask(window)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Forgets the last `n` tokens; returns how many there were to forget."""
        n = min(self._end, n)
        self.rewind(self._end - n)
        self._shared.trimmed()
        return n

    def empty(self) -> bool:
        return self._end == 0

    def size(self) -> int:
        return self._end

    @property
    def nbytes(self) -> int:
        """Bytes that this layer's tokens occupy, whole pages counted."""
        size = self._pool.keys.shape[1]
        return -(-self._end // size) * size * self._pool.geometry.token_bytes

    @property
    def state(self) -> tuple[mx.array, mx.array, int] | tuple[()]:
        """(keys, values, tokens): a dense copy [1, kv_heads, tokens, dim], as mlx-lm saves it."""
        step = self._shared.step
        if step is None or self._end == 0:
            return ()
        part = SequenceSlice(step.slices[0].blocks, self._end, self._end)
        return (*reference.gather(self._pool, part), self._end)

    @state.setter
    def state(self, value: tuple[mx.array, mx.array, int] | tuple[()]) -> None:
        self.rewind(0)
        if not value:
            return
        keys, values, tokens = value
        if tokens == 0:
            return
        step = self._shared.step_for(0, tokens)
        reference.write(step, self._pool, keys[:, :, :tokens], values[:, :, :tokens])
        mx.eval(self._pool.keys, self._pool.values)
        self._end = tokens

    # ---- what the substitute and the engine ask ------------------------------------------------

    def rewind(self, tokens: int) -> None:
        """Continues from `tokens` tokens; drops rows that were noted and never attended to."""
        self._end = tokens
        if self._shared.unattended is self:
            self._shared.unattended = None
        self._pending = self._placeholders = self._advanced_in = None

    def holds(self, keys: mx.array, values: mx.array) -> bool:
        """Whether these could be this cache's rows after a cast."""
        g = self._pool.geometry
        return (keys.shape[1], keys.shape[3], values.shape[3]) == (g.kv_heads, g.k_dim, g.v_dim)

    @property
    def unattended(self) -> bool:
        """Whether rows were stored that no attention call has taken."""
        return self._pending is not None

    def attend(
        self,
        queries: mx.array,
        *,
        scale: float,
        mask: object,
        sinks: mx.array | None,
    ) -> mx.array:
        """Attention over this layer's pages; writes the noted rows first, once.

        Raises:
            UnsupportedAttentionError: the mask is not one that this cache made, or its window
                is not the cache's.
        """
        step = self._shared.step
        if step is None:
            raise UnsupportedAttentionError("The model attends before it stores anything.")
        window = self._window(mask)
        keys, values = self._pending or (None, None)
        self._pending = None
        if self._shared.unattended is self:
            self._shared.unattended = None
        # 16-bit pages below float32 rows: rows are rounded as they are written, and no sooner.
        dtype = self._pool.geometry.dtype if queries.dtype != mx.float32 else mx.float32
        out = self._shared.backend.attend(
            step,
            self._pool,
            _as(queries, dtype),
            None if keys is None else _as(keys, dtype),
            None if values is None else _as(values, dtype),
            scale=float(scale),
            window=window,
            sinks=sinks,
        )
        return _as(out, queries.dtype)

    def run_block(self, block: AttentionBlock, x: mx.array, mask: object) -> mx.array:
        """A whole attention block over this layer's pages: what `update_and_fetch` and `attend`
        do around the model's own code, in one operation.

        Args:
            block: Projects, writes the new rows, attends and adds to x.
            x: [1, tokens, hidden] or [tokens, 1, hidden], as the step is packed.
            mask: As for `attend`.

        Raises:
            UnsupportedAttentionError: as `update_and_fetch` and `attend`.
        """
        shared = self._shared
        if shared.unattended is not None or shared.placeholders.closed:
            self._refuse_rows()
        batch, length, _ = x.shape
        if batch > 1 and not shared.explicit:
            self._refuse_batch(batch)
        step = shared.step_for(self._end, batch * length)
        self._advanced_in = step
        if step.packing is Packing.SEQUENCE:
            self._end = step.end
        pool = self._pool
        out, pool.keys, pool.values = block(
            x, step.native, pool.keys, pool.values, self._window(mask)
        )
        return out

    def _window(self, mask: object) -> int | None:
        """Positions that a query sees under this mask; None: all."""
        kept = self._pool.geometry.window
        if mask is None:
            return kept
        window = self._shared.placeholders.window_of(mask)
        if window is None:
            return kept
        if kept is not None and kept != window:
            raise UnsupportedAttentionError(
                f"The model masks a window of {window} tokens over a cache that keeps {kept}."
            )
        return window

    def _refuse_rows(self) -> None:
        self._shared.placeholders.check_open()
        raise UnsupportedAttentionError(
            "The model stores keys and values and does not attend to them through pages: "
            "these caches belong to another model, or this one computes attention with code "
            "of its own instead of mlx-lm's scaled_dot_product_attention."
        )

    def _refuse_batch(self, sequences: int) -> None:
        raise UnsupportedAttentionError(
            f"The caches hold one sequence, and the model brings {sequences} at a time."
        )


def _as(array: mx.array, dtype: mx.Dtype) -> mx.array:
    return array if array.dtype == dtype else array.astype(dtype)
