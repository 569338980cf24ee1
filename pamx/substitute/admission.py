"""The admission check: pages must give a model the numbers that its own cache gives.

Structure alone does not prove that a model can be served: some pass every structural check and
are wrong. So before the first token, the model runs a few tokens on its own cache and on pages,
from the same state, and the logits are compared. The state is a context of random keys and
values put straight into the caches: it is longer than the model's windows and costs no forward
pass. Each way of packing a step is graded for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from pamx.attention.backend import Backend
from pamx.attention.cache import PagedKVCache, StepState
from pamx.attention.placeholders import Placeholders, UnsupportedAttentionError
from pamx.attention.sequence import PagedSequence
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.errors import ModelError
from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockTable
from pamx.kv.pool import BlockPool, LayerGeometry, token_bytes
from pamx.substitute.output import RowSelector

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
_COMPANY = ((3, 2), (9,))  # another sequence's tokens in the same steps
_TOKENS = sum(len(c) for c in _CHUNKS)


@dataclass(frozen=True)
class Admission:
    """What a model can be given, beyond one sequence on pages.

    Attributes:
        rows: Steps with many sequences, packed (T, 1).
        select: Logits of chosen rows alone.
    """

    rows: bool
    select: bool


def admit(
    model: Module,
    layers: list[LayerGeometry],
    block_size: int,
    backend: Backend,
    placeholders: Placeholders,
    selector: RowSelector,
) -> Admission:
    """Compares pages with the model's own cache; the model is already substituted.

    Args:
        model: The mlx-lm model.
        layers: Its caches' geometry.
        block_size: Tokens a block.
        backend: What will serve its attention.
        placeholders: Shared with the substituted attention calls.
        selector: Shared with the substituted output projection.

    Raises:
        UnsupportedAttentionError: with one sequence the difference is too large, or the model
            asks of its cache what pages cannot give.
        ModelError: the model does not run on its own cache either.
    """
    past_windows = max((g.window + 5 for g in layers if g.window is not None), default=0)
    context = max(_CONTEXT, min(past_windows, _CONTEXT_BYTES // token_bytes(layers)))
    rows = [_random_rows(g, context, seed) for seed, g in enumerate(layers)]
    try:
        expected = _on_own_cache(model, rows)
    except Exception as error:
        raise ModelError(
            f"mlx-lm cannot run this model here: {error}.", "Try another model."
        ) from error

    if bool(mx.isnan(expected).any()):
        # Of a sound model too, if the random context is not what its layers are made for; a
        # damaged one is found out at its first token.
        raise UnsupportedAttentionError(
            "The model's own output over a random context is not numbers (NaN), so there is "
            "nothing to compare with."
        )

    blocks = -(-(context + _TOKENS) // block_size) + 1
    pool = BlockPool(layers, blocks, block_size, backend.storage)
    table = BlockTable(BlockManager(blocks, block_size))
    sequence = PagedSequence(pool, table, backend, placeholders)
    try:
        for cache, (keys, values) in zip(sequence.caches, rows, strict=True):
            cache.state = (keys, values, context)
        found = _logits(model, sequence.caches)
    except UnsupportedAttentionError:
        raise
    except Exception as error:  # whatever a model does that no cache of ours foresaw
        raise UnsupportedAttentionError(
            f"The model does not run on pages ({type(error).__name__}: {error})."
        ) from error
    difference, limit = _difference(found, expected), _limit(layers)
    if not difference <= limit:  # written so that NaN fails
        raise UnsupportedAttentionError(
            f"On pages the model's logits differ by {difference:.2g} standard deviations from "
            f"those on its own cache ({limit:g} is allowed)."
        )

    sequence.trim(context)
    packed = _Packed(model, pool, table, StepState(backend, placeholders), selector)
    return Admission(
        rows=_passes(packed.all_rows, expected, limit),
        select=_passes(packed.selected_rows, expected[-1:], limit),
    )


class _Packed:
    """The same tokens again, in steps shared with another sequence."""

    def __init__(
        self,
        model: Module,
        pool: BlockPool,
        table: BlockTable,
        state: StepState,
        selector: RowSelector,
    ) -> None:
        self._model, self._pool, self._table = model, pool, table
        self._state, self._selector = state, selector
        self._context = table.num_tokens

    def all_rows(self) -> mx.array:
        """[tokens, vocabulary] of the first sequence."""
        return mx.concatenate(
            [logits[: len(chunk), 0] for chunk, logits in zip(_CHUNKS, self._run(), strict=True)]
        )

    def selected_rows(self) -> mx.array:
        """[1, vocabulary]: the first sequence's last row."""
        *_, last = self._run(select=True)
        if last.shape[:2] != (1, 1):
            raise ValueError(f"selected logits have shape {last.shape}")
        return last[:, 0]

    def _run(self, select: bool = False) -> list[mx.array]:
        self._table.trim(self._context)
        company = BlockTable(self._table.manager)
        caches = [PagedKVCache(layer, self._state) for layer in self._pool.layers]
        outputs = []
        try:
            for ours, theirs in zip(_CHUNKS, _COMPANY, strict=True):
                slices = []
                for table, tokens in ((self._table, ours), (company, theirs)):
                    self._pool.copy(table.grow(len(tokens)))
                    blocks = tuple(table.blocks)
                    slices.append(SequenceSlice(blocks, table.num_tokens, len(tokens)))
                pool = self._pool
                self._state.set_step(Step(slices, Packing.ROWS, pool.num_blocks, pool.block_size))
                packed = mx.array([*ours, *theirs])[:, None]
                if select:
                    with self._selector.only([len(ours) - 1]):
                        logits = self._model(packed, cache=caches)
                else:
                    logits = self._model(packed, cache=caches)
                mx.eval(logits)
                outputs.append(logits.astype(mx.float32))
        finally:
            company.close()
            self._state.set_step(None)
        return outputs


def _passes(run: Any, expected: mx.array, limit: float) -> bool:
    try:
        found = run()
        return found.shape == expected.shape and _difference(found, expected) <= limit
    except Exception:  # it only decides which way the engine goes
        return False


def _difference(found: mx.array, expected: mx.array) -> float:
    """Root mean square difference, in standard deviations."""
    square = float(mx.mean(mx.square(found - expected)))
    return math.sqrt(square) / max(float(mx.std(expected)), 1e-12)


def _limit(layers: list[LayerGeometry]) -> float:
    exact = all(g.dtype == mx.float32 for g in layers)
    return TOLERANCE_FLOAT32 if exact else TOLERANCE_16_BIT


def _random_rows(geometry: LayerGeometry, tokens: int, seed: int) -> tuple[mx.array, mx.array]:
    key_k, key_v = mx.random.split(mx.random.key(seed))
    shape = (1, geometry.kv_heads, tokens)
    return (
        mx.random.normal((*shape, geometry.k_dim), geometry.dtype, key=key_k),
        mx.random.normal((*shape, geometry.v_dim), geometry.dtype, key=key_v),
    )


def _on_own_cache(model: Module, rows: list[tuple[mx.array, mx.array]]) -> mx.array:
    caches = make_prompt_cache(model)
    for cache, (keys, values) in zip(caches, rows, strict=True):
        cache.update_and_fetch(keys, values)
    return _logits(model, caches)


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
