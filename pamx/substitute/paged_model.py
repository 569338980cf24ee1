"""A loaded mlx-lm model whose attention runs from pages, and back again."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.attention.backend import Backend, choose_backend
from pamx.attention.cache import PagedKVCache, StepState
from pamx.attention.placeholders import Placeholders
from pamx.attention.sequence import PagedSequence
from pamx.attention.step import Packing, Step
from pamx.closing import Closing
from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockTable
from pamx.kv.budget import measure_memory, measure_rest
from pamx.kv.limits import give_back_free_memory
from pamx.kv.pool import BlockPool, LayerGeometry, token_bytes
from pamx.native.partitions import partition_from_environment
from pamx.substitute.admission import Admission
from pamx.substitute.choices import KvDtype, checked_compute, checked_kv_dtype
from pamx.substitute.computation import Place, chosen_mode, substitute
from pamx.substitute.geometry import discover_geometry
from pamx.substitute.levels import ComputeMode
from pamx.substitute.needs import (
    Needs,
    needs_of,
    page_layers,
    pool_tokens,
    prefill_chunk,
    runs_fused,
)
from pamx.substitute.output import RowSelector
from pamx.substitute.weights import MemoryStore, WeightStore


class PagedModel(Closing):
    """Enables paged attention on an mlx-lm model that is already loaded.

    The model's own attention calls are routed to pages while this object is open, and with
    `compute` its other operations to ours; closing it restores the model exactly. No other model
    is touched.

    Args:
        model: A model from `mlx_lm.load`.
        context: Tokens that the pool holds in all. None: `max_context`, or as many as fit half
            of the memory that pages may take now if that is less.
        max_context: The longest sequence that the model was trained for, if known.
        more: Tokens that the pool holds in all instead of that, as far as half of that memory goes.
        block_size: Tokens a page: 8, 16 or 32.
        backend: What computes attention; None: the best that serves this device.
        admission: What an earlier check of this very model and `compute` found; None: compare its
            logits on pages with those on its own cache now.
        compute: "mlx": attention alone is replaced. "exact": what else can be runs in native CPU
            kernels, in float32. "fast": likewise, and quantised matrices meet activations in int8.
            Where the native library does not serve, "mlx" does. None: "mlx", because a model that
            you loaded should keep its numbers, while `pamx.load` is for speed and takes "fast".
        kv_dtype: What pages hold: "float32", "float16" or "bfloat16", or such an mx.Dtype; "auto"
            or None: float16 for a float32 model in "fast", else the dtype of the model.
        weights: Gives packed weights; None: they are packed now, and kept in memory.
        disposable: Nobody wants the model if it cannot have its pages here, so it is not restored
            then: where memory has ended, there is none for its weights either.

    Attributes:
        admission: What the model can be given.
        compute: What computes each layer, and why.
        context: Tokens that the pool holds in all.
        backend: What computes attention, and why.

    Raises:
        UnsupportedAttentionError: pages would not give this model its own numbers; it is
            unchanged then.
        RequestError: `context` does not fit into memory; `compute` or `kv_dtype` is unknown; or
            PAMX_FORCE_PARTITION is wrong.
    """

    def __init__(
        self,
        model: Module,
        *,
        context: int | None = None,
        max_context: int | None = None,
        more: int = 0,
        block_size: int = 16,
        backend: Backend | None = None,
        admission: Admission | None = None,
        compute: ComputeMode | None = "mlx",
        kv_dtype: KvDtype = None,
        weights: WeightStore | None = None,
        disposable: bool = False,
    ) -> None:
        wanted, dtype = checked_compute(compute) or "mlx", checked_kv_dtype(kv_dtype)
        partition_from_environment(block_size)  # before a wrong one is taken for the model's fault
        self.backend = backend or choose_backend()
        layers = discover_geometry(model)
        mode, reason = chosen_mode(wanted, self.backend)

        def pages(mode: ComputeMode) -> list[LayerGeometry]:
            return page_layers(layers, mode, dtype)

        # Before anything is computed: a context that cannot be is an error at once.
        memory, store = measure_memory(), weights or MemoryStore()
        mx.set_cache_limit(memory.buffer_cache)

        def needs_in(mode: ComputeMode, admission: Admission | None) -> Needs:
            return needs_of(
                model,
                mode,
                pages(mode),
                in_place=self.backend.in_place,
                known=store.known_size,
                fused=runs_fused(admission),
                block_size=block_size,
            )

        def tokens(needs: Needs) -> int:
            return pool_tokens(needs, memory.budget(needs.footprint), context, max_context, more)

        tokens(needs_in(mode, admission))
        self._placeholders = Placeholders()
        self._selector = RowSelector()
        self._model = model
        self._owns_model = True
        place = Place(
            model,
            layers,
            block_size,
            self.backend,
            self._placeholders,
            self._selector,
            store,
        )
        self._substitution, self.admission, self.compute = substitute(
            place, mode, reason, pages, admission
        )
        mx.clear_cache()  # what comparing and packing took
        give_back_free_memory()
        try:
            stored = pages(self.compute.mode)
            self._needs = needs_in(self.compute.mode, self.admission)
            self._make_pool(stored, tokens(self._needs), block_size)
        except BaseException:
            self.close(restore=not disposable)
            raise

    def _make_pool(self, pages: list[LayerGeometry], tokens: int, block_size: int) -> None:
        num_blocks = -(-tokens // block_size)
        self.manager = BlockManager(num_blocks, block_size)
        self.context = num_blocks * block_size
        self.pool = BlockPool(pages, num_blocks, block_size, self.backend.storage)
        self._state = StepState(self.backend, self._placeholders)
        self._step_caches = [PagedKVCache(layer, self._state) for layer in self.pool.layers]
        # Rows, and rows of logits, of the steps before.
        self._lately: deque[tuple[int, int]] = deque(maxlen=2)

    def with_other_pages(
        self, *, context: int, block_size: int, kv_dtype: KvDtype = None
    ) -> PagedModel:
        """The same model over a second pool, to measure one kind of pages against another.

        Only one of the two may have a step queued at a time. Closing the second one gives its pool
        back and leaves the model as it is. What pages of another dtype do to the numbers is not
        checked here: the check was made with this model's own.

        Args:
            context, block_size, kv_dtype: As for `PagedModel`.

        Raises:
            RequestError: the pool does not fit into memory beside this one.
        """
        pages = self.pages(kv_dtype)
        other = copy.copy(self)
        other._owns_model = False
        needs = replace(self._needs, token_bytes=token_bytes(pages), block_size=block_size)
        tokens = pool_tokens(needs, measure_rest(), context, None)
        other._make_pool(pages, tokens, block_size)
        return other

    def pages(self, kv_dtype: KvDtype = None) -> list[LayerGeometry]:
        """What each layer's pages store, or would store with this dtype; None: as they are."""
        dtype = checked_kv_dtype(kv_dtype)
        stored = [layer.geometry for layer in self.pool.layers]
        return stored if dtype is None else [replace(g, dtype=dtype) for g in stored]

    def sequence(self) -> PagedSequence:
        """A new, empty sequence. Close it to give its pages back."""
        table = BlockTable(self.manager)
        return PagedSequence(self.pool, table, self.backend, self._placeholders)

    def prompt_cache(self) -> list[PagedKVCache]:
        """The caches of a new sequence, for the `prompt_cache` argument of mlx-lm's functions.

        Its pages return to the pool when the caches are trimmed or dropped.
        """
        return self.sequence().caches

    def forward(self, step: Step, tokens: mx.array, rows: list[int]) -> mx.array:
        """Runs the model over a step's packed tokens; lazy.

        Args:
            step: The sequences, on blocks of this model's pool.
            tokens: [tokens] ids.
            rows: Packed rows whose logits are wanted, in ascending order.

        Returns:
            [rows, vocabulary]
        """
        before = self.arrays()
        self._state.set_step(step)
        for cache in self._step_caches:
            cache.rewind(0)
        logits = self._logits(step, tokens, rows)
        self._make_room((step.num_tokens, len(rows)), before)
        return logits

    def _logits(self, step: Step, tokens: mx.array, rows: list[int]) -> mx.array:
        inputs = tokens[None] if step.packing is Packing.SEQUENCE else tokens[:, None]
        if len(rows) == step.num_tokens:  # each of them
            logits: mx.array = self._model(inputs, cache=self._step_caches)
            return logits.flatten(0, 1)
        if self.admission.select:
            with self._selector.only(rows):
                logits = self._model(inputs, cache=self._step_caches)
            return logits.flatten(0, 1)
        logits = self._model(inputs, cache=self._step_caches)
        return logits.flatten(0, 1)[mx.array(rows)]

    def _make_room(self, rows: tuple[int, int], before: list[mx.array]) -> None:
        """Has the steps that run at a time take no more memory than one of the largest.

        MLX allocates the results of queued operations ahead of computing them, and reuses what
        was freed for results of the same size alone. So a step whose rows and those of the step
        before are more than a piece of a prompt waits for it, and what steps of other sizes left
        is given back.

        Args:
            rows: Of the step that is about to be queued, and of its logits.
            before: What the step before leaves of the pools.
        """
        if self._lately and self._lately[-1][0] + rows[0] > prefill_chunk(self.compute.mode):
            mx.eval(before)
        if any(other != rows for other in self._lately):
            mx.clear_cache()
        self._lately.append(rows)

    @property
    def kv_dtype(self) -> mx.Dtype:
        """What pages hold."""
        return self.pool.layers[0].keys.dtype

    def arrays(self) -> list[mx.array]:
        """The pools as the last queued write leaves them: evaluate these to settle it."""
        return [array for layer in self.pool.layers for array in (layer.keys, layer.values)]

    def close(self, *, restore: bool = True) -> None:
        """Restores the model; the pages go with the last sequence. Idempotent.

        Args:
            restore: False: leave the model as it is; it is of no use then.

        Raises:
            MemoryError: there is none for the model's weights. Closing again goes on.
        """
        if not self._owns_model:
            return
        self._placeholders.close()
        if restore:
            self._substitution.undo()
