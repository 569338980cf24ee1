"""A loaded mlx-lm model whose attention runs from pages, and back again."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.attention.backend import Backend, choose_backend
from pamx.attention.cache import PagedKVCache, StepState
from pamx.attention.placeholders import Placeholders
from pamx.attention.sequence import PagedSequence
from pamx.attention.step import Packing, Step
from pamx.closing import Closing
from pamx.errors import RequestError
from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockTable
from pamx.kv.budget import UNASKED_SHARE, measure_budget
from pamx.kv.pool import BlockPool, LayerGeometry, token_bytes
from pamx.substitute.admission import Admission
from pamx.substitute.choices import KvDtype, checked_compute, checked_kv_dtype
from pamx.substitute.computation import Place, chosen_mode, substitute
from pamx.substitute.geometry import discover_geometry
from pamx.substitute.levels import ComputeMode
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

    Attributes:
        admission: What the model can be given.
        compute: What computes each layer, and why.
        context: Tokens that the pool holds in all.
        backend: What computes attention, and why.

    Raises:
        UnsupportedAttentionError: pages would not give this model its own numbers; it is
            unchanged then.
        RequestError: `context` does not fit into memory; `compute` or `kv_dtype` is unknown.
    """

    def __init__(
        self,
        model: Module,
        *,
        context: int | None = None,
        max_context: int | None = None,
        block_size: int = 16,
        backend: Backend | None = None,
        admission: Admission | None = None,
        compute: ComputeMode | None = "mlx",
        kv_dtype: KvDtype = None,
        weights: WeightStore | None = None,
    ) -> None:
        wanted, dtype = checked_compute(compute) or "mlx", checked_kv_dtype(kv_dtype)
        self.backend = backend or choose_backend()
        layers = discover_geometry(model)
        mode, reason = chosen_mode(wanted, self.backend)

        def pages(mode: ComputeMode) -> list[LayerGeometry]:
            return [replace(g, dtype=dtype or _page_dtype(g.dtype, mode)) for g in layers]

        # Before anything is computed: a context that cannot be is an error at once.
        _pool_tokens(pages(mode), context, max_context)
        self._placeholders = Placeholders()
        self._selector = RowSelector()
        self._model = model
        place = Place(
            model,
            layers,
            block_size,
            self.backend,
            self._placeholders,
            self._selector,
            weights or MemoryStore(),
        )
        self._substitution, self.admission, self.compute = substitute(
            place, mode, reason, pages, admission
        )
        try:
            stored = pages(self.compute.mode)
            num_blocks = -(-_pool_tokens(stored, context, max_context) // block_size)
            self.manager = BlockManager(num_blocks, block_size)
            self.context = num_blocks * block_size
            self.pool = BlockPool(stored, num_blocks, block_size, self.backend.storage)
        except BaseException:
            self.close()
            raise
        self._state = StepState(self.backend, self._placeholders)
        self._step_caches = [PagedKVCache(layer, self._state) for layer in self.pool.layers]

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
        self._state.set_step(step)
        for cache in self._step_caches:
            cache.rewind(0)
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
        """
        self._placeholders.close()
        if restore:
            self._substitution.undo()


def _page_dtype(dtype: mx.Dtype, mode: ComputeMode) -> mx.Dtype:
    """What pages hold if nobody says: half of float32 is enough where activations have 8 bits."""
    return mx.float16 if mode == "fast" and dtype == mx.float32 else dtype


def _pool_tokens(layers: list[LayerGeometry], wanted: int | None, max_context: int | None) -> int:
    """Tokens that the pool will hold; also keeps MLX's buffer cache to its share."""
    per_token, budget = token_bytes(layers), measure_budget()
    mx.set_cache_limit(budget.buffer_cache)
    if wanted is None:
        fits = int(budget.pages * UNASKED_SHARE) // per_token
        if fits < 1:
            raise RequestError(
                f"There is no room for a KV cache: {budget.explain()}, and a token takes "
                f"{per_token:,} bytes.",
                "Close other programs, or take a smaller model.",
            )
        return min(max_context or fits, fits)
    if wanted < 1:
        raise RequestError(f"The context is {wanted} tokens; it must be at least 1.")
    fits = budget.pages // per_token
    if wanted > fits:
        raise RequestError(
            f"A context of {wanted:,} tokens needs {wanted * per_token:,} bytes of KV cache "
            f"({per_token:,} a token): {budget.explain()}.",
            f"Ask for at most {fits:,} tokens, or close other programs.",
        )
    return wanted
