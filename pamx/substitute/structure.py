"""Recognising a decoder layer from what it was seen to compute.

The roles of a layer's modules follow from where their results went: the value projection is the
one whose rows were stored as values, the output projection the one that was given attention's
result, and so on. What happens between two modules (reshaping, the gate, adding the residual) is
supposed and then checked against the numbers. Nothing depends on how a model names its parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear

from pamx.attention.cache import PagedKVCache
from pamx.attention.placeholders import WindowMask
from pamx.native.small import GateKind
from pamx.substitute.kinds import GATES, Norm, Rope, norm_of, rope_of
from pamx.substitute.observe import Attended, Call

# Largest difference from what is supposed, as a part of the largest value.
_TOLERANCE_FLOAT32, _TOLERANCE_16_BIT = 2e-5, 2e-2


class NotRecognised(Exception):  # noqa: N818  # not an error: the layer keeps its own code
    """Says in a sentence why a layer is not one of those that are fused."""


@dataclass(frozen=True)
class AttentionPlan:
    """x + residual_scale * output_norm(output(attention(rope(norm(qkv(input_norm(x)))))).

    Modules are named as in the model; None: there is none.

    Attributes:
        projections: Three names (query, key, value), or one whose rows are query, key, value.
        sinks: Module and name of the parameter that is the attention sinks.
    """

    projections: tuple[str, ...]
    output: str
    input_norm: str | None
    query_norm: str | None
    key_norm: str | None
    output_norm: str | None
    rope: str | None
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    scale: float
    sinks: tuple[str, str] | None
    residual_scale: float


@dataclass(frozen=True)
class GatedPlan:
    """h + residual_scale * output_norm(down(gate_kind(gate(n)) * up(n))) with n = input_norm(h).

    Attributes:
        projections: Two names (gate, up), or one whose rows are gate, up.
    """

    projections: tuple[str, ...]
    down: str
    gate_kind: GateKind
    input_norm: str | None
    output_norm: str | None
    residual_scale: float


@dataclass(frozen=True)
class OtherPlan:
    """h + residual_scale * output_norm(module(input_norm(h))): a second half of any kind.

    Attributes:
        reason: Why it is not a gated MLP.
    """

    module: str
    input_norm: str | None
    output_norm: str | None
    residual_scale: float
    reason: str


@dataclass(frozen=True)
class GatedModule:
    """A module that is a gated MLP and no more: `plan` without norms and residual."""

    module: str
    plan: GatedPlan


@dataclass(frozen=True)
class LayerPlan:
    """A layer whose computation is understood."""

    layer: str
    attention: AttentionPlan
    mlp: GatedPlan | OtherPlan


def recognise(call: Call, cache: PagedKVCache | None, attended: Iterable[Attended]) -> LayerPlan:
    """What a layer computes.

    Args:
        call: A call of the layer on float rows [1, rows, hidden].
        cache: The cache that it was handed.
        attended: All attention calls of the pass.

    Raises:
        NotRecognised: it is something else than the plans can say.
    """
    _check_signature(call, cache)
    inside = call.attended
    if not inside:
        raise NotRecognised("It computes no attention over its cache.")
    if len(inside) > 1 or inside[0].cache is not cache:
        raise NotRecognised("It attends more than once, or to another layer's keys.")
    if sum(a.cache is cache for a in attended) != 1:
        raise NotRecognised("Other layers attend to its keys.")
    return _Reader(call, inside[0]).plan()


def gated_modules(call: Call) -> list[GatedModule]:
    """The modules within a call that are gated MLPs and no more."""
    found: list[GatedModule] = []
    for inner in call.within:
        if len(inner.args) == 1 and not inner.kwargs and inner.within and not inner.attended:
            plan = _Reader(inner, None).alone()
            if plan is not None:
                found.append(GatedModule(inner.name, plan))
    return found


def _check_signature(call: Call, cache: PagedKVCache | None) -> None:
    """The layer is called as (x, mask, cache) and nothing else is handed to it."""
    signature = inspect.signature(call.module.__call__)
    given = dict(signature.bind(*call.args, **call.kwargs).arguments)
    names = list(signature.parameters)
    x = given.pop(names[0])
    if not isinstance(x, mx.array) or x.ndim != 3 or not isinstance(call.out, mx.array):
        raise NotRecognised("It is not called with one array and does not return one.")
    if given.pop("cache", None) is not cache:
        raise NotRecognised("Its cache does not come as an argument called cache.")
    mask = given.pop("mask", None)
    if given or not (mask is None or isinstance(mask, (WindowMask, str, mx.array))):
        raise NotRecognised(f"It is also given {', '.join(given) or 'a mask of its own kind'}.")
    if names[1:3] != ["mask", "cache"]:
        raise NotRecognised("It takes its arguments in another order than x, mask, cache.")


Rows = npt.NDArray[np.float32]


class _Reader:
    """Reads one layer's call backwards from its attention, then forwards to its end."""

    def __init__(self, call: Call, attended: Attended | None) -> None:
        self._call = call
        self._attention_call = attended
        self._numpy: dict[int, Rows] = {}
        self._names: set[str] = set()  # modules with a role
        self._whole: list[str] = []  # modules that keep their own code, with all in them
        self._sinks: mx.array | None = None
        self._x: mx.array = call.x if call.x is not None else mx.zeros(())
        self._dtype = self._x.dtype
        self._calls = [c for c in call.within if c.x is not None and isinstance(c.out, mx.array)]
        self._linears = [c for c in self._calls if isinstance(c.module, (Linear, QuantizedLinear))]
        self._norms = [(c, n) for c in self._calls if (n := norm_of(c.module)) is not None]
        self._ropes = [(c, r) for c in self._calls if (r := rope_of(c.module)) is not None]

    def plan(self) -> LayerPlan:
        attention, hidden, after = self._attention()
        try:
            mlp: GatedPlan | OtherPlan = self._gated(hidden, after)
        except NotRecognised as error:
            mlp = self._other(hidden, after, str(error))
        self._check_all_used()
        return LayerPlan(self._call.name, attention, mlp)

    def alone(self) -> GatedPlan | None:
        """The plan if the call is a gated MLP and nothing else."""
        if not isinstance(self._call.out, mx.array) or self._x.ndim < 2:
            return None
        for down in self._linears:
            if down.out is not self._call.out:
                continue
            for projections, gate, up in self._gate_candidates(self._linears, down):
                kind = self._gate_kind(gate, up, self._rows_in(down))
                if kind is None or not self._equal(
                    self._rows_in(projections[0]), self._rows(self._x)
                ):
                    continue
                plan = GatedPlan(
                    tuple(self._use(c) for c in projections), self._use(down), kind, None, None, 1.0
                )
                try:
                    self._check_all_used()
                except NotRecognised:
                    return None
                return plan
        return None

    # ---- attention ---------------------------------------------------------------------------

    def _attention(self) -> tuple[AttentionPlan, Rows, int]:
        """The plan, the rows x + r that it gives, and the index of the first call after it."""
        a = self._attention_call
        assert a is not None
        heads, head_dim = a.queries.shape[1], a.queries.shape[3]
        kv_heads, v_dim = a.values.shape[1], a.values.shape[3]
        queries, keys, values = (self._rows(x) for x in (a.queries, a.keys, a.values))
        q_raw, q_rope, q_norm = self._before_attention(queries, heads, head_dim)
        k_raw, k_rope, k_norm = self._before_attention(keys, kv_heads, head_dim)
        if (q_rope is None) != (k_rope is None):
            raise NotRecognised("Only one of queries and keys is rotated.")
        rope = None
        if q_rope is not None and k_rope is not None:
            (q_call, q_kind), (k_call, k_kind) = q_rope, k_rope
            if not q_kind.same_as(k_kind):
                raise NotRecognised("Queries and keys are rotated in different ways.")
            if q_kind.dims > head_dim:
                raise NotRecognised("More elements are rotated than a head has.")
            rope = self._use(q_call)
            self._use(k_call)
        projections, entry = self._projections(q_raw, k_raw, values)
        input_norm = None
        if not self._equal(entry, self._rows(self._x)):
            norm = self._norm_giving(entry)
            if norm is None or not self._equal(self._rows_in(norm), self._rows(self._x)):
                raise NotRecognised("What goes into its projections is not its input, normalised.")
            input_norm = self._use(norm)
        output = self._linear_taking(self._rows(a.out))
        if output is None:
            raise NotRecognised("No linear layer takes attention's result as it is.")
        branch, output_norm = self._normed(self._rows(output.out))
        after = 1 + max(self._calls.index(output), *self._places(output_norm))
        hidden, residual = self._residual(self._rows(self._x), branch, after)
        plan = AttentionPlan(
            projections=projections,
            output=self._use(output),
            input_norm=input_norm,
            query_norm=self._head_norm(q_norm, heads, head_dim),
            key_norm=self._head_norm(k_norm, kv_heads, head_dim),
            output_norm=None if output_norm is None else self._use(output_norm),
            rope=rope,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_dim=v_dim,
            scale=a.scale,
            sinks=self._find_sinks(a.sinks),
            residual_scale=residual,
        )
        return plan, hidden, after

    def _before_attention(
        self, rows: Rows, heads: int, head_dim: int
    ) -> tuple[Rows, tuple[Call, Rope] | None, tuple[Call, Norm] | None]:
        """Back from attention: rows of a projection, and the rope and norm after it."""
        rope = next(((c, r) for c, r in self._ropes if self._equal(self._rows(c.out), rows)), None)
        if rope is not None:
            rows = self._rows_in(rope[0])
        size = heads * head_dim
        norm = next(
            ((c, n) for c, n in self._norms if self._equal(self._wide(c.out, size), rows)), None
        )
        if norm is not None:
            rows = self._wide(norm[0].x, size)
        return rows, rope, norm

    def _projections(self, q: Rows, k: Rows, v: Rows) -> tuple[tuple[str, ...], Rows]:
        """The linear layers that gave these rows, and what went into them."""
        three = [self._linear_giving(rows) for rows in (q, k, v)]
        if None not in three:
            entries = [self._rows_in(c) for c in three if c is not None]
            if not all(self._equal(e, entries[0]) for e in entries):
                raise NotRecognised("Its projections do not have one input.")
            return tuple(self._use(c) for c in three if c is not None), entries[0]
        fused = self._linear_giving(np.concatenate([q, k, v], axis=1))
        if fused is None:
            raise NotRecognised("Its queries, keys or values are not what a linear layer gave.")
        return (self._use(fused),), self._rows_in(fused)

    def _head_norm(self, found: tuple[Call, Norm] | None, heads: int, dim: int) -> str | None:
        if found is None:
            return None
        call, norm = found
        assert call.x is not None
        size = call.x.shape[-1]
        if size not in (dim, heads * dim) or (norm.weight is not None and norm.weight.ndim != 1):
            raise NotRecognised("The norm of its queries or keys is neither by head nor over all.")
        return self._use(call)

    def _find_sinks(self, sinks: mx.array | None) -> tuple[str, str] | None:
        if sinks is None:
            return None
        for name, module in self._submodules():
            for key, value in dict.items(module):
                if value is sinks:
                    self._sinks = sinks
                    return name, key
        raise NotRecognised("Its attention sinks are not a parameter.")

    # ---- the second half ---------------------------------------------------------------------

    def _gated(self, hidden: Rows, after: int) -> GatedPlan:
        linears = [c for c in self._linears if self._calls.index(c) >= after]
        for down in reversed(linears):
            product = self._rows_in(down)
            for projections, gate, up in self._gate_candidates(linears, down):
                kind = self._gate_kind(gate, up, product)
                if kind is None:
                    continue
                entry = self._rows_in(projections[0])
                norm = None
                if not self._equal(entry, hidden):
                    norm = self._norm_giving(entry, after)
                    if norm is None or not self._close(self._rows_in(norm), hidden):
                        raise NotRecognised("Its MLP's input is not the normalised residual.")
                branch, output_norm = self._normed(self._rows(down.out))
                residual = self._end(hidden, branch)
                return GatedPlan(
                    projections=tuple(self._use(c) for c in projections),
                    down=self._use(down),
                    gate_kind=kind,
                    input_norm=None if norm is None else self._use(norm),
                    output_norm=None if output_norm is None else self._use(output_norm),
                    residual_scale=residual,
                )
        raise NotRecognised("Its second half is not a gated MLP.")

    def _gate_candidates(
        self, linears: list[Call], down: Call
    ) -> Iterable[tuple[tuple[Call, ...], Rows, Rows]]:
        size = self._rows_in(down).shape[1]
        before = [c for c in linears if self._calls.index(c) < self._calls.index(down)]
        for gate in before:
            if gate.out.shape[-1] == 2 * size:
                rows = self._rows(gate.out)
                yield (gate,), rows[:, :size], rows[:, size:]
            for up in before:
                same_shape = gate.out.shape[-1] == up.out.shape[-1] == size
                if up is not gate and same_shape:
                    if not self._equal(self._rows_in(gate), self._rows_in(up)):
                        continue
                    yield (gate, up), self._rows(gate.out), self._rows(up.out)

    def _gate_kind(self, gate: Rows, up: Rows, product: Rows) -> GateKind | None:
        errors = {
            kind: float(np.abs(np.array(act(mx.array(gate))) * up - product).max())
            for kind, act in GATES.items()
        }
        best = min(errors, key=lambda kind: errors[kind])
        allowed = self._tolerance * float(np.abs(product).max())
        return best if errors[best] <= allowed else None

    def _other(self, hidden: Rows, after: int, reason: str) -> OtherPlan:
        """A module between the residual and its norms, whatever it does."""
        later = self._calls[after:]
        inner = {id(c) for call in later for c in call.within}
        for call in later:
            if id(call) in inner or norm_of(call.module) is not None:
                continue
            entry = self._rows_in(call)
            norm = self._norm_giving(entry, after)
            if not self._close(entry if norm is None else self._rows_in(norm), hidden):
                continue
            if call.kwargs or len(call.args) != 1 or call.out.shape != self._x.shape:
                break
            branch, output_norm = self._normed(self._rows(call.out))
            residual = self._end(hidden, branch)
            self._whole.append(call.name)
            return OtherPlan(
                module=call.name,
                input_norm=None if norm is None else self._use(norm),
                output_norm=None if output_norm is None else self._use(output_norm),
                residual_scale=residual,
                reason=reason,
            )
        raise NotRecognised(reason)

    # ---- residuals ---------------------------------------------------------------------------

    def _residual(self, x: Rows, branch: Rows, after: int) -> tuple[Rows, float]:
        """The rows between the halves, and the scale with which they are x + scale * branch."""
        for call in self._calls[after:]:
            rows = self._rows_in(call)
            if rows.shape == x.shape and (scale := self._scale(rows, x, branch)) is not None:
                return rows, scale
        raise NotRecognised("Attention's result is not added to its input before the second half.")

    def _end(self, hidden: Rows, branch: Rows) -> float:
        scale = self._scale(self._rows(self._call.out), hidden, branch)
        if scale is None:
            raise NotRecognised("Its output is not the residual plus its second half.")
        return scale

    def _scale(self, total: Rows, x: Rows, branch: Rows) -> float | None:
        """s with total = x + s * branch, or None."""
        if total.shape != x.shape or branch.shape != x.shape:
            return None
        b = branch.astype(np.float64)
        square = float((b * b).sum())
        if not square > 0:
            return None
        scale = float(((total.astype(np.float64) - x) * b).sum() / square)
        # The factor was rounded to the layer's dtype before it multiplied anything.
        scale = float(mx.array(scale, mx.float32).astype(self._dtype).astype(mx.float32))
        if abs(scale - 1) < self._tolerance:
            scale = 1.0
        return scale if scale and self._close(x + np.float32(scale) * branch, total) else None

    # ---- looking things up ---------------------------------------------------------------------

    def _linear_giving(self, rows: Rows) -> Call | None:
        return next((c for c in self._linears if self._equal(self._rows(c.out), rows)), None)

    def _linear_taking(self, rows: Rows) -> Call | None:
        return next((c for c in self._linears if self._equal(self._rows_in(c), rows)), None)

    def _norm_giving(self, rows: Rows, after: int = 0) -> Call | None:
        late = self._calls[after:]
        return next(
            (c for c, _ in self._norms if c in late and self._equal(self._rows(c.out), rows)), None
        )

    def _normed(self, rows: Rows) -> tuple[Rows, Call | None]:
        """The rows after the norm that is applied to exactly these rows, if there is one."""
        for call, _ in self._norms:
            if self._equal(self._rows_in(call), rows):
                return self._rows(call.out), call
        return rows, None

    def _places(self, call: Call | None) -> list[int]:
        return [-1] if call is None else [self._calls.index(call)]

    def _use(self, call: Call) -> str:
        self._names.add(call.name)
        return call.name

    def _submodules(self) -> list[tuple[str, Module]]:
        named = self._call.module.named_modules()  # type: ignore[no-untyped-call]
        return [(f"{self._call.name}.{name}" if name else self._call.name, m) for name, m in named]

    def _check_all_used(self) -> None:
        """Every parameter in the layer belongs to a module that has a role."""
        for name, module in self._submodules():
            whole = any(name == w or name.startswith(w + ".") for w in self._whole)
            if name in self._names or whole:
                continue
            for key, value in dict.items(module):
                if isinstance(value, mx.array) and value is not self._sinks:
                    raise NotRecognised(f"{name}.{key} was not seen in use.")

    # ---- rows --------------------------------------------------------------------------------

    def _rows_in(self, call: Call) -> Rows:
        assert call.x is not None
        return self._rows(call.x)

    def _rows(self, array: Any) -> Rows:
        """[1, rows, n], [1, heads, rows, n] or [rows, n] as [rows, all]."""
        found = self._numpy.get(id(array))
        if found is None:
            found = np.array(array.astype(mx.float32))
            if found.ndim == 4:
                found = found.swapaxes(1, 2)
            if found.ndim > 2:
                found = found.reshape(found.shape[0] * found.shape[1], -1)
            self._numpy[id(array)] = found
        return found

    def _wide(self, array: Any, size: int) -> Rows:
        """Like `_rows`, also of [1, rows, heads, n]: what makes rows of `size` elements."""
        rows = self._rows(array)
        if array.ndim == 4 and array.shape[1] == self._x.shape[1]:
            plain: Rows = np.array(array.astype(mx.float32)).reshape(array.shape[1], -1)
            return plain if plain.shape[1] == size else rows
        return rows

    @property
    def _tolerance(self) -> float:
        return _TOLERANCE_FLOAT32 if self._dtype == mx.float32 else _TOLERANCE_16_BIT

    def _equal(self, a: Rows, b: Rows) -> bool:
        return a.shape == b.shape and bool(np.array_equal(a, b))

    def _close(self, a: Rows, b: Rows) -> bool:
        if a.shape != b.shape:
            return False
        return bool(np.abs(a - b).max() <= self._tolerance * max(float(np.abs(b).max()), 1e-12))
