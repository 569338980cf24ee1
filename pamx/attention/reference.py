"""Paged attention in plain MLX operations: the fallback on every device, and a second oracle."""

from __future__ import annotations

import mlx.core as mx

from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.kv.pool import LayerPool
from pamx.native.dispatch import record_reference


def attend(
    step: Step,
    pool: LayerPool,
    queries: mx.array,
    keys: mx.array | None,
    values: mx.array | None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Scatters new rows into the pool, gathers each sequence's pages, attends densely.

    Arguments and result are those of `pamx.attention.backend.Attend`.
    """
    step.check()
    record_reference()
    if keys is not None and values is not None:
        write(step, pool, keys, values)
    rows = _to_rows(queries, step.packing)
    outputs = []
    first = 0
    for part in step.slices:
        q = rows[first : first + part.query_len].swapaxes(0, 1)[None]
        first += part.query_len
        k, v = (x.astype(q.dtype) for x in gather(pool, part))
        outputs.append(_dense(q, k, v, part, scale, softcap, window, sinks)[0].swapaxes(0, 1))
    packed = outputs[0] if len(outputs) == 1 else mx.concatenate(outputs)
    if step.packing is Packing.ROWS:
        return packed[:, :, None]
    return packed.swapaxes(0, 1)[None]


def write(step: Step, pool: LayerPool, keys: mx.array, values: mx.array) -> None:
    """Writes packed rows [batch, kv_heads, length, dim] into their slots."""
    pool.keys = _scatter(pool.keys, step.slot_mapping, _to_rows(keys, step.packing))
    pool.values = _scatter(pool.values, step.slot_mapping, _to_rows(values, step.packing))


def gather(pool: LayerPool, part: SequenceSlice) -> tuple[mx.array, mx.array]:
    """A sequence's K and V as dense arrays [1, kv_heads, context, dim]."""
    size = pool.keys.shape[1]
    blocks = mx.array(list(part.blocks[: -(-part.context_len // size)]), mx.int32)

    def dense(pages: mx.array) -> mx.array:
        rows = pages[blocks].flatten(0, 1)[: part.context_len]
        return rows.swapaxes(0, 1)[None]

    return dense(pool.keys), dense(pool.values)


def _to_rows(packed: mx.array, packing: Packing) -> mx.array:
    """[batch, heads, length, dim] to [tokens, heads, dim]."""
    if packing is Packing.ROWS:
        return packed[:, :, 0]
    return packed[0].swapaxes(0, 1)


def _scatter(pages: mx.array, slots: mx.array, rows: mx.array) -> mx.array:
    flat = pages.flatten(0, 1)
    flat[slots] = rows.astype(pages.dtype)
    return flat.reshape(pages.shape)


def _dense(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    part: SequenceSlice,
    scale: float,
    softcap: float,
    window: int | None,
    sinks: mx.array | None,
) -> mx.array:
    """Causal attention of [1, heads, query, dim] over [1, kv_heads, context, dim]."""
    query, key = mx.arange(part.start, part.context_len)[:, None], mx.arange(part.context_len)
    mask = key <= query
    if window is not None:
        mask = mask & (key > query - window)
    if not softcap:
        return mx.fast.scaled_dot_product_attention(
            q, k, v, scale=scale, mask=mask, sinks=None if sinks is None else sinks.astype(q.dtype)
        )
    # MLX's fused attention has no soft-cap.
    group = q.shape[1] // k.shape[1]
    k, v = (mx.repeat(x.astype(mx.float32), group, axis=1) for x in (k, v))
    scores = softcap * mx.tanh((q.astype(mx.float32) @ k.swapaxes(-1, -2)) * (scale / softcap))
    scores = mx.where(mask, scores, -mx.inf)
    if sinks is not None:
        column = mx.broadcast_to(sinks.astype(mx.float32)[None, :, None, None], (*q.shape[:3], 1))
        scores = mx.concatenate([scores, column], axis=-1)
        weights = mx.softmax(scores, axis=-1)[..., :-1]
    else:
        weights = mx.softmax(scores, axis=-1)
    return (weights @ v).astype(q.dtype)
