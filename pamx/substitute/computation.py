"""Replacing a loaded model's computation, as far as its own numbers bear it out.

Attention always runs from pages. In the modes "exact" and "fast" linear layers, norms, ropes and
gates become operations of ours as well, and layers that are understood become one operation each.
All of it is first run in "exact" beside what it replaces: operations against the model on its own
cache, fused layers against the same layers by operations. Both sides compute in float32 then,
whatever the weights are, so that rounding hides nothing. What differs is not used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding

from pamx.attention.backend import Backend
from pamx.attention.cache import PagedKVCache
from pamx.attention.placeholders import Placeholders, UnsupportedAttentionError
from pamx.attention.sequence import PagedSequence
from pamx.errors import NativeError
from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockTable
from pamx.kv.pool import BlockPool, LayerGeometry
from pamx.native.matrices import Compute
from pamx.substitute.admission import (
    TOLERANCE_FLOAT32,
    Admission,
    Reference,
    Trial,
    admit,
    difference,
    measure_reference,
    tolerance,
)
from pamx.substitute.attention import substitute_attention
from pamx.substitute.classes import Swaps, Undo, in_front
from pamx.substitute.fused import FusedLayers, Unfused
from pamx.substitute.levels import AS_ASKED, ComputeMode, LayerLevel, Levels
from pamx.substitute.linear import LinearLayers
from pamx.substitute.observe import observe
from pamx.substitute.output import RowSelector, substitute_output
from pamx.substitute.recipe import Recipe
from pamx.substitute.small_ops import SmallOperations
from pamx.substitute.structure import (
    GatedModule,
    GatedPlan,
    LayerPlan,
    NotRecognised,
    OtherPlan,
    gated_modules,
    recognise,
)
from pamx.substitute.weights import WeightStore

# Sums in another order, through every layer of a model and from a random context, which magnifies
# them. What is wrong is seen much earlier, layer by layer.
TOLERANCE_IN_FLOAT32 = 1e-3
# In use, activations are rounded to 16 or, in "fast", to 8 bits: logits then differ by a few
# hundredths of a standard deviation. A kernel that is wrong makes them differ by more than one.
TOLERANCE_IN_USE = 0.5
_TOKENS_IN_USE = 32

# The caches' geometry, with the dtype that pages have in a mode.
Pages = Callable[[ComputeMode], list[LayerGeometry]]


@dataclass(frozen=True)
class Place:
    """A model and what its substitution is made with; see `PagedModel`."""

    model: Module
    layers: list[LayerGeometry]
    block_size: int
    backend: Backend
    placeholders: Placeholders
    selector: RowSelector
    store: WeightStore

    def trial(self, reference: Reference, layers: list[LayerGeometry]) -> Trial:
        return Trial(
            self.model,
            layers,
            self.block_size,
            self.backend,
            self.placeholders,
            self.selector,
            reference,
        )


class Substitution:
    """A model with its attention on pages and, unless the mode is "mlx", its computation replaced.

    Args:
        place: The model.
        mode: What to replace.
        kept: Linear layers and embeddings to leave alone.

    Raises:
        UnsupportedAttentionError: pages cannot serve the model.
        NativeError: its weights cannot be packed.
    """

    def __init__(self, place: Place, mode: ComputeMode, kept: Iterable[str] = ()) -> None:
        self._place = place
        self._undo: list[Undo] = []
        self._fused: FusedLayers | None = None
        self._linear: LinearLayers | None = None
        model = place.model
        try:
            self._undo.append(substitute_attention(model, place.placeholders))
            if mode != "mlx":
                self._linear = linear = LinearLayers(model, place.store, "exact", kept)
                self._undo.append(linear.undo)
                self._small = SmallOperations(model)
                self._undo.append(self._small.undo)
            self._undo.append(substitute_output(model, place.selector))
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Gives the model back as it was. Idempotent."""
        if self._fused is not None:
            self._fused.undo()
            self._fused = None
        while self._undo:
            self._undo[-1]()
            self._undo.pop()

    @property
    def linear(self) -> LinearLayers:
        assert self._linear is not None
        return self._linear

    def fuse(self, recipe: Recipe, compute: Compute, *, early: bool) -> FusedLayers:
        """Fuses the recipe's layers, in place of what is fused now."""
        if self._fused is not None:
            self._fused.undo()
        self.linear.set_compute(compute)
        self._fused = FusedLayers(
            self._place.model,
            recipe.plans,
            recipe.gated,
            self.linear,
            self._small,
            compute,
            self._place.selector if early else None,
            recipe.layers[-1] if recipe.layers else "",
        )
        return self._fused

    def find_recipe(self, layers: list[LayerGeometry]) -> Recipe:
        """Watches the model compute; nothing is fused yet.

        Args:
            layers: Geometry of the pages for it.
        """
        place = self._place
        calls, attended = observe(
            place.model, layers, place.block_size, place.backend, place.placeholders
        )
        plans: list[LayerPlan] = []
        gated: list[GatedModule] = []
        reasons: dict[str, str] = {}
        times = Counter(id(call.module) for call in calls)
        for call in calls:
            cache = next(
                a for a in (*call.args, *call.kwargs.values()) if isinstance(a, PagedKVCache)
            )
            try:
                if times[id(call.module)] > 1:
                    raise NotRecognised("The model calls it more than once.")
                plan = recognise(call, cache, attended)
                self._check_packed(plan)
            except NotRecognised as error:
                reasons[call.name] = str(error)
                found = gated_modules(call)
            else:
                plans.append(plan)
                inside = plan.mlp.module if isinstance(plan.mlp, OtherPlan) else None
                found = [g for c in call.within if c.name == inside for g in gated_modules(c)]
            # A module that several layers share is replaced once.
            known = {g.module for g in gated}
            gated += [g for g in found if g.module not in known and self._packed(g.plan)]
        return Recipe(tuple(c.name for c in calls), tuple(plans), tuple(gated), reasons)

    def _check_packed(self, plan: LayerPlan) -> None:
        names = [*plan.attention.projections, plan.attention.output]
        if isinstance(plan.mlp, GatedPlan):
            names += [*plan.mlp.projections, plan.mlp.down]
        for name in names:
            if self.linear.matrix_of(name) is None:
                why = self.linear.reasons.get(name, "It is not replaced.")
                raise NotRecognised(f"{name.rsplit('.', 1)[-1]}: {why}")

    def _packed(self, plan: GatedPlan) -> bool:
        return all(self.linear.matrix_of(n) is not None for n in (*plan.projections, plan.down))

    def levels(self, mode: ComputeMode, reason: str, recipe: Recipe) -> Levels:
        """What serves each layer now."""
        assert self._fused is not None
        fused = self._fused.fused
        layers = []
        for name in recipe.layers:
            plan = next((p for p in recipe.plans if p.layer == name), None)
            if plan is None or name not in fused:
                replaced = any(n.startswith(name + ".") for n in self.linear.bits)
                why = recipe.reasons.get(name, "One of its parts was changed.")
                layers.append(LayerLevel(name, "operations" if replaced else "mlx", why))
            else:
                other = isinstance(plan.mlp, OtherPlan)
                why = "Its attention is; its second half is not a gated MLP." if other else ""
                layers.append(LayerLevel(name, "fused", why))
        heads = [self.linear.bits[name] for name in self.linear.head]
        head = "on plain MLX"
        if heads:
            head = f"{heads[0]}-bit weights" if heads[0] else "dense weights"
            if heads[0] and mode == "fast":
                head += ", 15-bit activations"
        kept = tuple(sorted(self.linear.reasons.items()))
        return Levels(mode, reason, tuple(layers), head, kept)


def substitute(
    place: Place,
    mode: ComputeMode,
    reason: str,
    pages: Pages,
    admission: Admission | None,
) -> tuple[Substitution, Admission, Levels]:
    """Replaces what can be replaced.

    Args:
        place: The model.
        mode: The most that is wanted.
        reason: Why, for `Levels`.
        pages: The caches' geometry with the dtype that pages will have in a mode.
        admission: What an earlier call for this model and mode returned; None: find out.

    Raises:
        UnsupportedAttentionError: pages do not give the model its own numbers.
        ModelError: the model does not run on its own cache either.
    """
    if admission is not None:
        recipe = admission.recipe or Recipe(refused=reason)
        if mode == "mlx" or recipe.refused:
            found = Substitution(place, "mlx")
            return found, admission, Levels("mlx", recipe.refused or reason)
        try:
            return _known(place, mode, reason, recipe, admission)
        except (KeyError, LookupError, NativeError):
            pass  # not what was recorded: as if nothing were known
    refused = ""
    if mode != "mlx":
        try:
            return _tried(place, mode, reason, pages)
        except (UnsupportedAttentionError, NativeError) as error:
            refused = f"Its computation cannot be replaced: {error.message}"
    reference = measure_reference(place.model, place.layers)
    plain = Substitution(place, "mlx")
    layers = pages("mlx")
    try:
        limit = max(tolerance(place.layers), tolerance(layers))
        admission = admit(place.trial(reference, layers), limit)
    except BaseException:
        plain.undo()
        raise
    if refused:
        admission = replace(admission, recipe=Recipe(refused=refused))
    return plain, admission, Levels("mlx", refused or reason)


def _known(
    place: Place, mode: ComputeMode, reason: str, recipe: Recipe, admission: Admission
) -> tuple[Substitution, Admission, Levels]:
    found = Substitution(place, mode, recipe.kept)
    try:
        if mode == "fast" and not recipe.fast:
            mode, reason = "exact", _NOT_FAST
        assert mode != "mlx"
        found.fuse(recipe, mode, early=recipe.early)
        return found, admission, found.levels(mode, reason, recipe)
    except BaseException:
        found.undo()
        raise


_NOT_FAST = "Rounded activations change this model's output too much."


def _tried(
    place: Place, mode: ComputeMode, reason: str, pages: Pages
) -> tuple[Substitution, Admission, Levels]:
    wide = [replace(g, dtype=mx.float32) for g in place.layers]
    with _in_float32(place.model):
        reference = measure_reference(place.model, wide)
    found = Substitution(place, mode)
    try:
        with _in_float32(place.model):
            recipe, admission = _admitted(found, place, wide, reference)
            tokens = _tokens(reference)
            found.fuse(recipe, "exact", early=False)
            expected = _run(place, wide, tokens)
        compute: Compute = "fast" if mode == "fast" else "exact"
        fused = found.fuse(recipe, compute, early=admission.select)
        if any(g.dtype == mx.float16 for g in place.layers):
            recipe = _without(recipe, _overflowing(fused, place, pages(mode), tokens))
            found.fuse(recipe, compute, early=admission.select)
        distance = difference(_run(place, pages(mode), tokens), expected)
        if compute == "fast" and not distance <= TOLERANCE_IN_USE:
            mode, reason, compute = "exact", _NOT_FAST, "exact"
            recipe = replace(recipe, fast=False)
            found.fuse(recipe, compute, early=admission.select)
            distance = difference(_run(place, pages(mode), tokens), expected)
        if not distance <= TOLERANCE_IN_USE:
            raise UnsupportedAttentionError(
                f"Its logits differ by {distance:.2g} standard deviations from those in float32."
            )
        if admission.select and recipe.plans:
            early = place.trial(reference, pages(mode)).early() <= TOLERANCE_IN_FLOAT32
            recipe = replace(recipe, early=early)
            if not early:
                found.fuse(recipe, compute, early=False)
        admission = replace(admission, recipe=recipe)
        return found, admission, found.levels(mode, reason, recipe)
    except BaseException:
        found.undo()
        raise


def _tokens(reference: Reference) -> list[int]:
    """A sequence that no model repeats itself in, of ids that this one knows."""
    vocabulary = reference.expected.shape[-1]
    ids = mx.random.randint(0, vocabulary, (_TOKENS_IN_USE,), key=mx.random.key(0))
    return [int(i) for i in ids]


def _run(place: Place, layers: list[LayerGeometry], tokens: list[int]) -> mx.array:
    """[tokens, vocabulary]: logits of a sequence from its beginning, on pages."""
    blocks = -(-len(tokens) // place.block_size)
    pool = BlockPool(layers, blocks, place.block_size, place.backend.storage)
    table = BlockTable(BlockManager(blocks, place.block_size))
    caches = PagedSequence(pool, table, place.backend, place.placeholders).caches
    logits: mx.array = place.model(mx.array([tokens]), cache=caches)[0].astype(mx.float32)
    mx.eval(logits)
    return logits


def _admitted(
    found: Substitution, place: Place, wide: list[LayerGeometry], reference: Reference
) -> tuple[Recipe, Admission]:
    """What can be fused, with each fused layer held against its own code."""
    recipe = found.find_recipe(wide)
    fused = found.fuse(recipe, "exact", early=False)
    differences = _Differences(TOLERANCE_FLOAT32)
    fused.watch(differences.between)
    try:
        admission = admit(place.trial(reference, wide), TOLERANCE_IN_FLOAT32)
    finally:
        fused.watch(None)
    kept = found.linear.keep_those_read()
    failed = {
        name: f"Fused, its numbers differ by {distance:.2g} of their size."
        for name, distance in differences.failed().items()
    }
    return replace(_without(recipe, failed), kept=kept), admission


@contextmanager
def _in_float32(model: Module) -> Iterator[None]:
    """Makes the model's embeddings give float32, and with them everything that follows."""
    swaps = Swaps()
    for _, module in model.named_modules():  # type: ignore[no-untyped-call]
        if isinstance(module, (Embedding, QuantizedEmbedding)):
            swaps.swap(module, in_front(type(module), _Float32))
    try:
        yield
    finally:
        swaps.undo()


class _Float32(Module):
    def __call__(self, ids: mx.array) -> mx.array:
        rows: mx.array = super().__call__(ids)
        return rows.astype(mx.float32)


def _overflowing(
    fused: FusedLayers, place: Place, pages: list[LayerGeometry], tokens: list[int]
) -> dict[str, str]:
    """The layers that keep float16 rows finite where fused they would not, and why they matter."""
    found: dict[str, list[mx.array]] = {}

    def between(name: str, unfused: Unfused, fused: Unfused) -> Unfused:
        def all_three(x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            large = mx.sign(x) * _LARGEST_FLOAT16
            finite = []
            for run in (unfused, fused):
                finite.append(mx.isfinite(run(large, mask, cache)).all())
                cache.rewind(cache.size() - x.shape[1])
            found.setdefault(name, []).append(finite[0] & ~finite[1])
            return unfused(x, mask, cache)

        return all_three

    fused.watch(between)
    try:
        _run(place, pages, tokens)
    finally:
        fused.watch(None)
    reason = "In float16 it keeps large rows from overflowing."
    return {name: reason for name, flags in found.items() if any(bool(f) for f in flags)}


_LARGEST_FLOAT16 = 65504.0


def _without(recipe: Recipe, reasons: dict[str, str]) -> Recipe:
    """The recipe less some layers, with the reasons."""
    plans = tuple(p for p in recipe.plans if p.layer not in reasons)
    return replace(recipe, plans=plans, reasons={**recipe.reasons, **reasons})


class _Differences:
    """How far fused layers are from their own code on the same rows.

    Args:
        limit: Root mean square difference that is allowed, in sizes of what the layer adds.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._found: dict[str, list[mx.array]] = {}

    def between(self, name: str, unfused: Unfused, fused: Unfused) -> Unfused:
        found = self._found.setdefault(name, [])

        def both(x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            expected = unfused(x, mask, cache)
            if isinstance(cache, PagedKVCache):
                # The same rows once more, into the same slots.
                cache.rewind(cache.size() - x.shape[1] if cache.size() else 0)
                found.append(self._difference(x, expected, fused(x, mask, cache)))
            return expected

        return both

    def failed(self) -> dict[str, float]:
        """The layers that differ by more than is allowed, and by how much."""
        worst = {
            name: max(float(d) if math.isfinite(float(d)) else math.inf for d in found)
            for name, found in self._found.items()
            if found
        }
        return {name: w for name, w in worst.items() if not w <= self._limit}

    def _difference(self, x: mx.array, expected: mx.array, found: mx.array) -> mx.array:
        # Adding to large rows rounds, too.
        size = _size(expected - x) + _ROUNDING * _size(expected)
        return _size(found - expected) / size


_ROUNDING = 1e-3  # of a row's size, in sizes of what a layer may add wrongly


def _size(rows: mx.array) -> mx.array:
    return mx.sqrt(mx.mean(mx.square(rows)))


def chosen_mode(wanted: ComputeMode, backend: Backend) -> tuple[ComputeMode, str]:
    """The mode that this backend can serve, and why it is this one."""
    if wanted != "mlx" and backend.name != "native-cpu":
        return "mlx", backend.reason
    return wanted, _MEANING[wanted]


_MEANING: dict[ComputeMode, str] = {
    "fast": "Native kernels; quantised matrices meet activations in 8 bits.",
    "exact": "Native kernels, in float32.",
    "mlx": AS_ASKED,
}
