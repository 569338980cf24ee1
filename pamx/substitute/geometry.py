"""What each of a model's caches stores, read off one forward pass that is never evaluated."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from pamx.attention.placeholders import UnsupportedAttentionError
from pamx.errors import ModelError
from pamx.kv.pool import LayerGeometry


def discover_geometry(model: Module) -> list[LayerGeometry]:
    """Heads, head sizes, dtype and window of every cache that the model makes, in its order.

    MLX is lazy: the shapes and dtypes of a forward pass are known before any of it is computed.

    Raises:
        UnsupportedAttentionError: the model keeps something else than keys and values.
        ModelError: the model does not run on this device at all.
    """
    caches = make_prompt_cache(model)
    for cache in caches:
        if type(cache) not in (KVCache, RotatingKVCache):
            raise UnsupportedAttentionError(
                f"The model keeps a {type(cache).__name__}, which pages do not hold yet."
            )
    try:
        model(mx.array([[0]]), cache=caches)
    except Exception as error:
        raise ModelError(
            f"mlx-lm cannot run this model here: {str(error).rstrip('.')}.",
            "Some models need a GPU; try another one.",
        ) from error
    return [_geometry(cache) for cache in caches]


def _geometry(cache: Any) -> LayerGeometry:
    if cache.keys is None:
        raise UnsupportedAttentionError("A layer of the model does not fill its cache.")
    window = None
    if isinstance(cache, RotatingKVCache):
        if cache.keep:
            raise UnsupportedAttentionError(
                f"A layer keeps its first {cache.keep} tokens besides its window."
            )
        window = cache.max_size
    batch, kv_heads, _, k_dim = cache.keys.shape
    v_dim = cache.values.shape[3]
    if batch != 1:
        raise UnsupportedAttentionError("The model reshapes its batch inside attention.")
    if max(k_dim, v_dim) > 256 or k_dim % 8 or v_dim % 8:
        raise UnsupportedAttentionError(
            f"The model's head sizes are {k_dim} and {v_dim}; pages hold multiples of 8 up to 256."
        )
    return LayerGeometry(kv_heads, k_dim, v_dim, cache.keys.dtype, window)
