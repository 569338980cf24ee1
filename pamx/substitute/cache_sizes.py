"""What mlx-lm's own caches of a model take, layer by layer, whatever kind of cache each is.

Two forward passes that are never evaluated tell: what does not grow is a state, what grows with
every token is counted by token, and a window stops growing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from pamx.errors import ModelError

_SHORT, _LONG = 8, 24  # tokens


@dataclass(frozen=True)
class CacheSize:
    """One layer's cache.

    Attributes:
        kind: mlx-lm's class of it, such as "KVCache".
        fixed: Bytes whatever the length.
        per_token: Bytes for each token.
        window: Tokens after which it does not grow; None: it always does.
    """

    kind: str
    fixed: int
    per_token: int
    window: int | None

    def nbytes(self, tokens: int) -> int:
        """Bytes that a sequence of so many tokens takes."""
        held = tokens if self.window is None else min(tokens, self.window)
        return self.fixed + self.per_token * held


def measure_caches(model: Module) -> list[CacheSize]:
    """The sizes of a model's own caches, in its order.

    Raises:
        ModelError: the model does not run on this device.
    """
    short, _ = _after(model, _SHORT)
    long, caches = _after(model, _LONG)
    sizes = []
    for low, high, cache in zip(short, long, caches, strict=True):
        per_token = max(0, high - low) // (_LONG - _SHORT)
        window = getattr(cache, "max_size", None)
        fixed = max(0, low - per_token * _SHORT)
        whole = int(window) if isinstance(window, int) else None
        sizes.append(CacheSize(type(cache).__name__, fixed, per_token, whole))
    return sizes


def _after(model: Module, tokens: int) -> tuple[list[int], list[Any]]:
    caches = make_prompt_cache(model)
    try:
        model(mx.zeros((1, tokens), mx.int32), cache=caches)
    except Exception as error:
        raise ModelError(
            f"mlx-lm cannot run this model here: {str(error).rstrip('.')}.",
            "Some models need a GPU; try another one.",
        ) from error
    leaves = [leaf for cache in caches for leaf in _leaves(cache)]
    return [_held(leaf) for leaf in leaves], leaves


def _leaves(cache: Any) -> Iterator[Any]:
    inner = getattr(cache, "caches", None)
    if isinstance(inner, list | tuple):
        for one in inner:
            yield from _leaves(one)
    else:
        yield cache


def _held(cache: Any) -> int:
    try:
        state = cache.state
    except (AttributeError, TypeError):  # nothing was put into it
        return 0
    arrays: list[Any] = [pair[1] for pair in tree_flatten(state)]
    return sum(int(array.nbytes) for array in arrays if isinstance(array, mx.array))


@contextmanager
def query_heads() -> Iterator[list[int]]:
    """Notes the heads of every query that meets MLX's attention within."""
    heads: list[int] = []
    module: Any = mx.fast
    plain = module.scaled_dot_product_attention

    def noting(q: mx.array, *args: Any, **more: Any) -> mx.array:
        heads.append(int(q.shape[1]))
        out: mx.array = plain(q, *args, **more)
        return out

    module.scaled_dot_product_attention = noting
    try:
        yield heads
    finally:
        module.scaled_dot_product_attention = plain
