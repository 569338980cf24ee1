"""How much memory a model needs to run, and how many tokens of context that leaves room for.

The engine asks this before it reads a weight, and `pamx doctor --model` prints the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.errors import NoRoomError, RequestError
from pamx.kv.budget import TO_SPARE, UNASKED_SHARE, Footprint, MemoryBudget
from pamx.kv.pool import LayerGeometry, token_bytes
from pamx.sizes import counted, need_and_left
from pamx.substitute.admission import Admission
from pamx.substitute.footprint import KnownSize, Weights, shape_of, weights_of
from pamx.substitute.levels import ComputeMode

# Tokens of a prompt in one forward pass: bounds the memory of activations, and how long an
# answer that is being stopped goes on. MLX's own matrix products on a CPU are slow, and no faster
# for larger pieces.
_STEP_ROWS, _STEP_ROWS_ON_MLX_CPU = 512, 64
# A program that queues operations for MLX's CPU is ahead of it by this many at most, and all of
# their results live: 10 tasks of 10 operations (MLX 0.32, MAX_ACTIVE_TASKS in mlx/transforms.cpp,
# DISPATCHES_PER_TASK in mlx/backend/cpu/encoder.h).
_QUEUED = 100
# Of those that MLX computes a layer with, about.
_LAYER_OPERATIONS = 25
# Rows that are drawn at a time (`pamx.engine.draw.ROWS_TOGETHER`), and arrays as large as their
# logits that live meanwhile, with top-p.
_ROWS_TOGETHER, _DRAW_COPIES = 16, 5


@dataclass(frozen=True)
class Needs:
    """What a model needs in one mode.

    Attributes:
        mode: What computes it.
        weights: What its weights take.
        footprint: What it holds besides pages.
        token_bytes: Bytes of pages for each token of each sequence.
        copied_bytes: Bytes for each token of the longest context while it is attended; 0 where a
            native kernel reads pages in place.
        block_size: Tokens a page; a sequence takes whole ones.
    """

    mode: ComputeMode
    weights: Weights
    footprint: Footprint
    token_bytes: int
    copied_bytes: int
    block_size: int

    def tokens_that_fit(self, room: int, sequences: int = 1) -> int:
        """How long each of `sequences` can be if `room` bytes are left for pages."""
        return max(0, room) // self.cache_bytes(1, sequences) * self.block_size

    def cache_bytes(self, tokens: int, sequences: int = 1) -> int:
        """Bytes for `sequences` of so many tokens each."""
        held = self.blocks(tokens) * self.block_size
        return held * (self.token_bytes * sequences + self.copied_bytes)

    def blocks(self, tokens: int) -> int:
        """Pages that a sequence of so many tokens takes."""
        return -(-tokens // self.block_size)


def needs_of(
    model: Module,
    mode: ComputeMode,
    pages: Sequence[LayerGeometry],
    *,
    in_place: bool,
    known: KnownSize | None = None,
    fused: bool = True,
    sequences: int = 1,
    context: int | None = None,
    block_size: int = 16,
) -> Needs:
    """What a model needs, whether its weights were read or not.

    Args:
        model: An mlx-lm model.
        mode: What computes it.
        pages: What pages hold of each of its caches.
        in_place: Whether attention reads pages where they are.
        known: See `weights_of`.
        fused: Whether its layers are one or two operations each, in "fast" and "exact".
        sequences: How many run at a time.
        context: Tokens of each, if a step may have fewer than it could; None: as many as ever.
        block_size: Tokens a page.

    Raises:
        NativeError: the native library cannot be used, and the mode is not "mlx".
    """
    weights, shape = weights_of(model, mode, known), shape_of(model)
    rows = step_rows(mode, sequences, context)
    if mode != "mlx" and fused:
        # The rows that leave each half of each layer; in the kernels, the inside of one MLP.
        queued = min(2 * len(pages), _QUEUED)
        activations = queued * rows * shape.hidden * shape.item
        scratch = rows * (2 * shape.widest + 2 * shape.hidden) * 4
    else:
        queued = min(math.ceil(_QUEUED / _LAYER_OPERATIONS), len(pages))
        activations = queued * rows * (3 * shape.widest + 12 * shape.hidden) * shape.item
        scratch = 0
    # Logits of all, and what is made of those of the rows that are drawn at a time.
    drawn = min(sequences, _ROWS_TOGETHER)
    scratch += (sequences + _DRAW_COPIES * drawn) * shape.vocabulary * 4
    copied = 0
    if pages and not in_place:
        # Keys and values out of the pages, and on a CPU the scores of all heads, twice over.
        layer = max(pages, key=lambda g: g.token_bytes)
        heads = max(shape.hidden // layer.k_dim, layer.kv_heads)
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        copied = 2 * layer.token_bytes + (2 * heads * rows * 4 if on_cpu else 0)
    return Needs(
        mode,
        weights,
        Footprint(weights.resident, activations, scratch),
        token_bytes(list(pages)),
        copied,
        block_size,
    )


def step_rows(mode: ComputeMode, sequences: int = 1, context: int | None = None) -> int:
    """The most tokens that a step computes.

    Steps that run at a time have no more than that together: see `PagedModel.forward`.

    Args:
        mode: What computes them.
        sequences: How many there are.
        context: Tokens of each; None: unknown.
    """
    most = max(prefill_chunk(mode), sequences)
    return most if context is None else min(most, sequences * context)


def runs_fused(admission: Admission | None) -> bool:
    """Whether most layers are one or two operations, as far as is known; else it is assumed."""
    recipe = None if admission is None else admission.recipe
    return recipe is None or 2 * len(recipe.plans) > len(recipe.layers)


def page_layers(
    layers: Sequence[LayerGeometry], mode: ComputeMode, dtype: mx.Dtype | None
) -> list[LayerGeometry]:
    """What pages hold of each cache.

    Args:
        layers: What the model puts into them.
        mode: What computes it.
        dtype: What the user wants; None: the model's own, or float16 where activations have 8
            bits and the model float32: half of that is enough then.
    """
    half = mode == "fast"
    return [
        replace(g, dtype=dtype or (mx.float16 if half and g.dtype == mx.float32 else g.dtype))
        for g in layers
    ]


def prefill_chunk(mode: ComputeMode) -> int:
    """Tokens of a prompt to compute at a time on MLX's default device."""
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    return _STEP_ROWS_ON_MLX_CPU if on_cpu and mode == "mlx" else _STEP_ROWS


def pool_tokens(
    needs: Needs,
    budget: MemoryBudget,
    wanted: int | None,
    max_context: int | None,
    more: int = 0,
) -> int:
    """Tokens that the pool will hold.

    Args:
        needs: The model's.
        budget: With its footprint.
        wanted: How many the user wants; None: as many as fit half of what pages may take.
        max_context: The longest sequence that the model was trained for, if known.
        more: Take so many instead of `wanted` or `max_context`, as far as these fit that half.

    Raises:
        RequestError: as many as are wanted do not fit, with the arithmetic.
        NoRoomError: none fits.
    """
    each = needs.cache_bytes(1)
    if wanted is None:
        fits = needs.tokens_that_fit(int(budget.pages * UNASKED_SHARE))
        if fits < 1:
            raise NoRoomError(
                f"There is no room for a KV cache, of which {needs.block_size} tokens take "
                f"{each:,} bytes: {budget.explain()}.",
                "Close other programs, or take a smaller model.",
            )
        return min(max(max_context, more) if max_context else fits, fits)
    if wanted < 1:
        raise RequestError(f"The context is {wanted} tokens; it must be at least 1.")
    bytes_wanted = needs.cache_bytes(wanted)
    if bytes_wanted > budget.pages:
        need, left = need_and_left(bytes_wanted, budget.pages)
        lasting = needs.tokens_that_fit(budget.lasting)
        advice = f"Ask for at most {counted(lasting, 'token')}, with {TO_SPARE}"
        raise RequestError(
            f"A context of {counted(wanted, 'token')} needs {need} for its KV cache, and {left} "
            f"are left for it: {budget.explain()}.",
            f"{advice}, or close other programs."
            if lasting
            else "Close other programs, or take a smaller model.",
        )
    return max(wanted, min(more, needs.tokens_that_fit(int(budget.pages * UNASKED_SHARE))))
