"""Decoder layers as one native operation: the attention block, and the MLP block after it.

They are two operations where the rows that the model's output needs are picked in between, and
where the second half of a layer is not a gated MLP.

A layer whose plan is known (see `pamx.substitute.structure`) gets both built from the packed
matrices, norms and ropes that its modules were replaced with. The modules stay where they are;
whoever changes one of them, or puts another in its place, gets the layer's own code back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.attention.cache import AttentionBlock, PagedKVCache
from pamx.native import blocks
from pamx.native.matrices import Compute, Matrix
from pamx.substitute.classes import Called, Swaps, Watched, on_change
from pamx.substitute.kinds import norm_of
from pamx.substitute.linear import LinearLayers
from pamx.substitute.output import RowSelector
from pamx.substitute.small_ops import SmallOperations
from pamx.substitute.structure import AttentionPlan, GatedModule, GatedPlan, LayerPlan, OtherPlan

Rows = Callable[[mx.array], mx.array]
Unfused = Callable[..., mx.array]


class _Layer(Called):
    def __call__(
        self, x: mx.array, mask: Any = None, cache: Any = None, *rest: Any, **more: Any
    ) -> Any:
        if rest or more:  # it was seen without
            return super(Called, self).__call__(x, mask, cache, *rest, **more)
        return self._pamx_run(x, mask, cache)


class FusedLayers:
    """The fused layers and gated MLPs of a model.

    Args:
        model: With its attention, linear layers and small operations substituted.
        layers: Plans of the layers to fuse.
        gated: Gated MLPs of other layers, to compute as one operation each.
        linear, small: What the modules were replaced with.
        compute: How matrices multiply.
        selector: Rows that the model's last layer needs to finish; None: all.
        last: The model's last layer.
    """

    def __init__(
        self,
        model: Module,
        layers: Iterable[LayerPlan],
        gated: Iterable[GatedModule],
        linear: LinearLayers,
        small: SmallOperations,
        compute: Compute,
        selector: RowSelector | None = None,
        last: str = "",
    ) -> None:
        self._swaps = Swaps()
        self._modules: dict[str, Module] = dict(model.named_modules())  # type: ignore[no-untyped-call]
        self._linear, self._small, self._compute = linear, small, compute
        self.fused: set[str] = set()
        try:
            for plan in gated:
                self._replace_gated(plan)
            for layer in layers:
                self._fuse(layer, selector if layer.layer == last else None)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        self._swaps.undo()

    def unfuse(self, layer: str) -> None:
        """Gives one layer its own code back."""
        vars(self._modules[layer])["_pamx_revert"]()

    def watch(self, wrap: Callable[[str, Unfused, Unfused], Unfused] | None) -> None:
        """Puts a function of (layer, its own code, fused) in their place; None: undoes."""
        for name in self.fused:
            own = vars(self._modules[name])
            unfused, fused = own["_pamx_unfused"], own["_pamx_fused"]
            own["_pamx_run"] = fused if wrap is None else wrap(name, unfused, fused)

    def _fuse(self, plan: LayerPlan, selector: RowSelector | None) -> None:
        module = self._modules[plan.layer]
        attention = self._attention(plan.attention)
        second = self._second(plan.mlp)
        whole = None
        if isinstance(second, blocks.MlpBlock):
            whole = blocks.LayerBlock(attention, second)
        unfused = functools.partial(type(module).__call__, module)
        run = _layer_call(attention, second, whole, selector, unfused)
        self._swaps.mix_in(module, _Layer, run=run, fused=run, unfused=unfused)
        own = vars(module)

        def revert() -> None:
            own["_pamx_run"] = unfused
            self.fused.discard(plan.layer)

        own["_pamx_revert"] = revert
        self._watch_all(plan.layer, revert)
        self.fused.add(plan.layer)

    def _replace_gated(self, plan: GatedModule) -> None:
        module = self._modules[plan.module]
        unfused = functools.partial(type(module).__call__, module)
        self._swaps.mix_in(module, Called, run=self._gated(plan.plan, residual=False))
        own = vars(module)

        def revert() -> None:
            own["_pamx_run"] = unfused

        self._watch_all(plan.module, revert)

    def _watch_all(self, name: str, revert: Callable[[], None]) -> None:
        for inner, module in self._modules.items():
            if inner == name or inner.startswith(name + "."):
                if not isinstance(module, Watched):
                    self._swaps.mix_in(module, Watched)
                on_change(module, revert)

    # ---- blocks --------------------------------------------------------------------------------

    def _attention(self, plan: AttentionPlan) -> blocks.AttentionBlock:
        size = self._matrix(plan.output).format.outputs
        sinks = None
        if plan.sinks is not None:
            module, key = plan.sinks
            sinks = dict.__getitem__(self._modules[module], key)
        # Of a layer's matrices these are the smallest, and rounding their activations shows most.
        matrices = [self._matrix(name, wide=True) for name in plan.projections]
        return blocks.AttentionBlock(
            compute=self._compute,
            heads=plan.heads,
            kv_heads=plan.kv_heads,
            head_dim=plan.head_dim,
            v_dim=plan.v_dim,
            projections=matrices,
            output=self._matrix(plan.output, wide=True),
            input_norm=self._norm(plan.input_norm, size),
            query_norm=self._norm(plan.query_norm, plan.head_dim),
            key_norm=self._norm(plan.key_norm, plan.head_dim),
            output_norm=self._norm(plan.output_norm, size),
            rope=None if plan.rope is None else self._small.ropes[id(self._modules[plan.rope])],
            residual_scale=plan.residual_scale,
            scale=plan.scale,
            sinks=sinks,
        )

    def _second(self, plan: GatedPlan | OtherPlan) -> Rows:
        if isinstance(plan, GatedPlan):
            return self._gated(plan, residual=True)
        module: Any = self._modules[plan.module]
        before: Any = self._modules[plan.input_norm] if plan.input_norm else None
        after: Any = self._modules[plan.output_norm] if plan.output_norm else None
        scale = plan.residual_scale

        def second(h: mx.array) -> mx.array:
            rows = module(h if before is None else before(h))
            if after is not None:
                rows = after(rows)
            out: mx.array = h + (rows if scale == 1 else rows * scale)
            return out

        return second

    def _gated(self, plan: GatedPlan, *, residual: bool) -> blocks.MlpBlock:
        size = self._matrix(plan.down).format.outputs
        return blocks.MlpBlock(
            compute=self._compute,
            kind=plan.gate_kind,
            projections=[self._matrix(name) for name in plan.projections],
            down=self._matrix(plan.down),
            input_norm=self._norm(plan.input_norm, size),
            output_norm=self._norm(plan.output_norm, size),
            residual_scale=plan.residual_scale,
            residual=residual,
        )

    def _matrix(self, name: str, *, wide: bool = False) -> Matrix:
        matrix = self._linear.matrix_of(name, wide=wide)
        if matrix is None:
            raise LookupError(f"{name} is not replaced")
        return matrix

    def _norm(self, name: str | None, size: int) -> blocks.Norm | None:
        if name is None:
            return None
        norm = norm_of(self._modules[name])
        if norm is None:
            raise LookupError(f"{name} is not a norm")
        if norm.weight is not None:
            size = norm.weight.size
        return blocks.Norm(norm.kind, size, norm.eps, norm.weight, norm.bias)


def _layer_call(
    attention: AttentionBlock,
    second: Rows,
    whole: AttentionBlock | None,
    selector: RowSelector | None,
    unfused: Unfused,
) -> Unfused:
    """What a fused layer computes: `whole`, or `attention`, what `selector` picks, and `second`."""

    def run(x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if not isinstance(cache, PagedKVCache):
            return unfused(x, mask, cache)
        if whole is not None and (selector is None or not selector.active):
            return cache.run_block(whole, x, mask)
        h = cache.run_block(attention, x, mask)
        return second(h if selector is None else selector.select_early(h))

    return run
