"""Routing a loaded model's attention calls to its paged caches, and undoing it.

mlx-lm's models call a function, `scaled_dot_product_attention`, that each model file imports
into its own globals. Replacing that global would change every model of the architecture in the
process. Instead, each module *instance* of the loaded model that makes such a call gets a
subclass of its class whose methods are the same code over a copy of the globals with that one
name replaced. Other models, the model file and mlx-lm stay as they are; `undo` gives the
instances their class back.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import scaled_dot_product_attention as dense_attention

from pamx.attention.cache import PagedKVCache
from pamx.attention.placeholders import Placeholders, UnsupportedAttentionError
from pamx.errors import PamxError
from pamx.substitute.classes import Swaps, Undo, clone_methods, mentions

_MARK = "_pamx_paged"  # on the subclasses, so that a model is not substituted twice
ATTENTION = "scaled_dot_product_attention"


def substitute_attention(model: Module, placeholders: Placeholders) -> Undo:
    """Makes the attention calls of `model` find their paged cache.

    A call whose keys come from no paged cache goes to mlx-lm's own attention, as before.

    Args:
        model: An mlx-lm model.
        placeholders: Shared with the paged caches.

    Returns:
        A function that restores the model; calling it again does nothing.

    Raises:
        UnsupportedAttentionError: no module of the model calls mlx-lm's attention function.
        PamxError: the model is substituted already.
    """
    if any(hasattr(type(m), _MARK) for _, m in model.named_modules()):  # type: ignore[no-untyped-call]
        raise PamxError(
            "This model is on pages already.", "Close its other PagedModel or Engine first."
        )
    paged = _paged_attention(placeholders)
    subclasses: dict[type, type] = {}
    swaps = Swaps()
    changed = False
    for _, module in model.named_modules():  # type: ignore[no-untyped-call]
        original = type(module)
        if original not in subclasses:
            subclasses[original] = _with_attention(original, paged)
        if subclasses[original] is not original:
            changed = True
            swaps.swap(module, subclasses[original])
    if not changed:
        raise UnsupportedAttentionError(
            "No layer of the model calls mlx-lm's scaled_dot_product_attention."
        )
    return swaps.undo


def _paged_attention(placeholders: Placeholders) -> Callable[..., mx.array]:
    """The function that takes the place of mlx-lm's `scaled_dot_product_attention`."""

    def attention(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        # Keys first: models share K and V between layers and pass another layer's cache. A model
        # that casts its keys on the way makes new arrays; then the cache argument tells.
        owner = placeholders.owner(keys)
        if owner is None and isinstance(cache, PagedKVCache):
            if not cache.holds(keys, values):
                raise UnsupportedAttentionError(
                    "The model changes its keys between the cache and the attention call."
                )
            owner = cache
        if owner is None:
            out: mx.array = dense_attention(queries, keys, values, cache, scale, mask, sinks)
            return out
        return owner.attend(queries, scale=scale, mask=mask, sinks=sinks)

    return attention


def _with_attention(cls: type, attention: Callable[..., mx.array]) -> type:
    """A subclass of `cls` whose methods call `attention`, or `cls` if none of them would."""

    def replaced(method: types.FunctionType) -> dict[str, Any]:
        calls = (
            mentions(method.__code__, ATTENTION)
            and method.__globals__.get(ATTENTION) is dense_attention
        )
        return {ATTENTION: attention} if calls else {}

    methods = clone_methods(cls, replaced)
    if not methods:
        return cls
    return type(cls.__name__, (cls,), {**methods, "__module__": cls.__module__, _MARK: True})
