"""The admission check: pages must give a model the numbers that its own cache gives.

Structure alone does not prove that a model can be served: some pass every structural check and
are wrong. So before the first token, the model runs a few tokens on its own cache and on pages,
from the same state, and the logits are compared. The state is a context of random keys and
values put straight into the caches: it is longer than the model's windows and costs no forward
pass. Each way of packing a step is graded for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from pamx.substitute.recipe import Recipe

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
        recipe: What its computation is replaced with; None: nothing but attention is.
    """

    rows: bool
    select: bool
    recipe: Recipe | None = None


@dataclass(frozen=True)
class Reference:
    """A context of random keys and values, and the model's logits after it on its own cache.

    Attributes:
        tokens: Length of the context.
        rows: Keys and values [1, kv_heads, tokens, dim] for each cache.
        expected: [steps' tokens, vocabulary] float32.
    """

    tokens: int
    rows: list[tuple[mx.array, mx.array]]
    expected: mx.array


def measure_reference(model: Module, layers: list[LayerGeometry]) -> Reference:
    """Runs the model on its own cache; it is still its own.

    Raises:
        UnsupportedAttentionError: what it gives is not numbers.
        ModelError: it does not run.
    """
    past_windows = max((g.window + 5 for g in layers if g.window is not None), default=0)
    context = max(_CONTEXT, min(past_windows, _CONTEXT_BYTES // token_bytes(layers)))
    rows = [_random_rows(g, context, seed) for seed, g in enumerate(layers)]
    try:
        expected = _on_own_cache(model, rows)
    except Exception as error:
        raise ModelError(
            f"mlx-lm cannot run this model here: {str(error).rstrip('.')}.", "Try another model."
        ) from error

    if bool(mx.isnan(expected).any()):
        # Of a sound model too, if the random context is not what its layers are made for; a
        # damaged one is found out at its first token.
        raise UnsupportedAttentionError(
            "The model's own output over a random context is not numbers (NaN), so there is "
            "nothing to compare with."
        )

    return Reference(context, rows, expected)


class Trial:
    """Runs a substituted model on pages from the reference's state.

    Args:
        model: The mlx-lm model, substituted.
        layers: Its caches' geometry, with the dtype that pages are to have.
        block_size: Tokens a block.
        backend: Serves its attention.
        placeholders: Shared with the substituted attention calls.
        selector: Shared with the substituted output projection.
        reference: What its own cache gave.
    """

    def __init__(
        self,
        model: Module,
        layers: list[LayerGeometry],
        block_size: int,
        backend: Backend,
        placeholders: Placeholders,
        selector: RowSelector,
        reference: Reference,
    ) -> None:
        self._model, self._reference = model, reference
        context = reference.tokens
        blocks = -(-(context + _TOKENS) // block_size) + 1
        pool = BlockPool(layers, blocks, block_size, backend.storage)
        table = BlockTable(BlockManager(blocks, block_size))
        self._sequence = PagedSequence(pool, table, backend, placeholders)
        for cache, (keys, values) in zip(self._sequence.caches, reference.rows, strict=True):
            cache.state = (keys, values, context)
        self._packed = _Packed(
            model, pool, table, StepState(backend, placeholders), selector, context
        )

    def sequence(self) -> float:
        """Root mean square difference of the logits, one sequence at a time, in deviations.

        Raises:
            UnsupportedAttentionError: the model does not run on pages.
        """
        try:
            self._sequence.trim(self._reference.tokens)
            found = _logits(self._model, self._sequence.caches)
        except UnsupportedAttentionError:
            raise
        except Exception as error:  # whatever a model does that no cache of ours foresaw
            raise UnsupportedAttentionError(
                f"The model does not run on pages ({type(error).__name__}: {error})."
            ) from error
        return difference(found, self._reference.expected)

    def rows(self) -> float:
        """The same for steps shared with another sequence; infinite if they fail."""
        return self._guarded(self._packed.all_rows, self._reference.expected)

    def selected(self) -> float:
        """The same with the last row's logits alone."""
        return self._guarded(self._packed.selected_rows, self._reference.expected[-1:])

    def _guarded(self, run: Callable[[], mx.array], expected: mx.array) -> float:
        self._sequence.trim(self._reference.tokens)
        try:
            found = run()
        except Exception:  # it only decides which way the engine goes
            return math.inf
        return difference(found, expected) if found.shape == expected.shape else math.inf

    def early(self) -> float:
        """How far the last row is from itself when it alone is asked for."""
        self._sequence.trim(self._reference.tokens)
        return self._guarded(self._packed.selected_rows, self._packed.all_rows()[-1:])


def admit(trial: Trial, limit: float) -> Admission:
    """Grades each way of packing a step.

    Args:
        trial: The model on pages.
        limit: The largest difference that is allowed, in standard deviations.

    Raises:
        UnsupportedAttentionError: with one sequence the difference is too large, or the model
            asks of its cache what pages cannot give.
    """
    distance = trial.sequence()
    if not distance <= limit:  # written so that NaN fails
        raise UnsupportedAttentionError(
            f"On pages the model's logits differ by {distance:.2g} standard deviations from "
            f"those on its own cache ({limit:g} is allowed)."
        )
    return Admission(rows=trial.rows() <= limit, select=trial.selected() <= limit)


class _Packed:
    """The same tokens again, in steps shared with another sequence."""

    def __init__(
        self,
        model: Module,
        pool: BlockPool,
        table: BlockTable,
        state: StepState,
        selector: RowSelector,
        context: int,
    ) -> None:
        self._model, self._pool, self._table = model, pool, table
        self._state, self._selector = state, selector
        self._context = context

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


def difference(found: mx.array, expected: mx.array) -> float:
    """Root mean square difference, in standard deviations."""
    square = float(mx.mean(mx.square(found - expected)))
    return math.sqrt(square) / max(float(mx.std(expected)), 1e-12)


def tolerance(layers: list[LayerGeometry]) -> float:
    """The largest difference that is allowed, in standard deviations."""
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
