"""The admission check: pages must give a model the numbers that its own cache gives.

Structure alone does not prove that a model can be served: some pass every structural check and
are wrong. So before the first token, the model runs a few tokens on its own cache and on pages,
from the same state, and the logits are compared. The state is a context of random keys and
values put straight into the caches: it is longer than the model's windows and costs no forward
pass.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from pamx.attention.backend import Backend
from pamx.attention.cache import PagedKVCache
from pamx.attention.placeholders import Placeholders, UnsupportedAttentionError
from pamx.attention.sequence import PagedSequence
from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockTable
from pamx.kv.pool import BlockPool, LayerGeometry, token_bytes

# Root mean square of the logits' differences, relative to their standard deviation, that is
# allowed. Float32 differs by the order of sums, near 1e-6. Models in 16 bits round every layer's
# result, and MLX's attention rounds its scores too where ours keeps float32.
TOLERANCE_FLOAT32 = 1e-4
TOLERANCE_16_BIT = 0.05

_CONTEXT = 37  # tokens: crosses blocks of every size, and ends inside one
# The random context exists three times for a moment. A window too long for this many bytes is
# compared inside the window only.
_CONTEXT_BYTES = 256 << 20
_CHUNKS = ((7, 11, 5), (13,))  # a piece of prompt, then a decode step
_TOKENS = sum(len(c) for c in _CHUNKS)


def admit(
    model: Module,
    layers: list[LayerGeometry],
    block_size: int,
    backend: Backend,
    placeholders: Placeholders,
) -> float:
    """Compares pages with the model's own cache; the model's attention is already substituted.

    Args:
        model: The mlx-lm model.
        layers: Its caches' geometry.
        block_size: Tokens a block.
        backend: What will serve its attention.
        placeholders: Shared with the substituted attention calls.

    Returns:
        The root mean square difference of logits, in standard deviations of the logits.

    Raises:
        UnsupportedAttentionError: the difference is too large, or the model asks of its cache
            what pages cannot give.
    """
    past_windows = max((g.window + 5 for g in layers if g.window is not None), default=0)
    context = max(_CONTEXT, min(past_windows, _CONTEXT_BYTES // token_bytes(layers)))
    rows = [_random_rows(g, context, seed) for seed, g in enumerate(layers)]

    own = make_prompt_cache(model)
    for cache, (keys, values) in zip(own, rows, strict=True):
        cache.update_and_fetch(keys, values)
    expected = _logits(model, own)

    try:
        found = _on_pages(model, layers, rows, context, block_size, backend, placeholders)
    except UnsupportedAttentionError:
        raise
    except Exception as error:  # whatever a model does that no cache of ours foresaw
        raise UnsupportedAttentionError(
            f"The model does not run on pages ({type(error).__name__}: {error})."
        ) from error

    square = float(mx.mean(mx.square(found - expected)))
    difference = math.sqrt(square) / max(float(mx.std(expected)), 1e-12)
    limit = TOLERANCE_FLOAT32 if all(g.dtype == mx.float32 for g in layers) else TOLERANCE_16_BIT
    if not difference <= limit:  # written so that NaN fails
        raise UnsupportedAttentionError(
            f"On pages the model's logits differ by {difference:.2g} standard deviations from "
            f"those on its own cache ({limit:g} is allowed)."
        )
    return difference


def _on_pages(
    model: Module,
    layers: list[LayerGeometry],
    rows: list[tuple[mx.array, mx.array]],
    context: int,
    block_size: int,
    backend: Backend,
    placeholders: Placeholders,
) -> mx.array:
    blocks = -(-(context + _TOKENS) // block_size)
    pool = BlockPool(layers, blocks, block_size, backend.allocate)
    table = BlockTable(BlockManager(blocks, block_size))
    sequence = PagedSequence(pool, table, backend, placeholders)
    for cache, (keys, values) in zip(sequence.caches, rows, strict=True):
        cache.state = (keys, values, context)
    found = _logits(model, sequence.caches)
    sequence.close()
    return found


def _random_rows(geometry: LayerGeometry, tokens: int, seed: int) -> tuple[mx.array, mx.array]:
    key_k, key_v = mx.random.split(mx.random.key(seed))
    shape = (1, geometry.kv_heads, tokens)
    return (
        mx.random.normal((*shape, geometry.k_dim), geometry.dtype, key=key_k),
        mx.random.normal((*shape, geometry.v_dim), geometry.dtype, key=key_v),
    )


def _logits(model: Module, caches: list[Any]) -> mx.array:
    """[tokens, vocabulary] in float32."""
    logits = []
    for chunk in _CHUNKS:
        out = model(mx.array([chunk]), cache=caches)[0].astype(mx.float32)
        mx.eval(out)
        if any(isinstance(c, PagedKVCache) and c.unattended for c in caches):
            raise UnsupportedAttentionError(
                "The model computes attention with code of its own, not with mlx-lm's "
                "scaled_dot_product_attention."
            )
        logits.append(out)
    return mx.concatenate(logits)
