"""Typed wrappers of the native fused blocks: a decoder layer as one or two lazy operations.

Every constructor raises NativeError when the parts do not fit together, and every call when its
arrays do not fit the block or MLX's default device is not the CPU. Arithmetic is in float32; in
`compute="fast"` quantised matrices round activations to int8 in groups (see pamx.native.matrices).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pamx.native.loader import Library, check, library
from pamx.native.matrices import COMPUTES, Compute, Matrix
from pamx.native.ops import NativeBatch
from pamx.native.small import GATES, GateKind, Rope, array_id

_NORMS = {"rms": 1, "layer": 2}  # pamx_norm_kind


@dataclass(frozen=True)
class Norm:
    """A norm inside a block.

    Args:
        kind: "rms" or "layer", as rms_norm and layer_norm in pamx.native.small.
        size: Elements that are normalised together.
        weight, bias: [size], or None for 1 and 0.
    """

    kind: Literal["rms", "layer"]
    size: int
    eps: float
    weight: mx.array | None = None
    bias: mx.array | None = None


class _PagedBlock:
    """What an attention block and a whole layer have in common: the call."""

    _call: Callable[..., int]

    def __call__(
        self,
        x: mx.array,
        batch: NativeBatch,
        key_pool: mx.array,
        value_pool: mx.array,
        window: int | None = None,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Runs the block on a step's tokens.

        Args:
            x: [1, tokens, width] or [tokens, 1, width].
            batch: The step's sequences.
            key_pool: [num_blocks, block_size, kv_heads, head_dim].
            value_pool: [num_blocks, block_size, kv_heads, v_dim].
            window: None for none; else a query sees this many positions, its own included.

        Returns:
            The output in x's shape and dtype, and the two pools to use from now on; they share
            the buffers of the pools given.
        """
        # Once a layer of every token: each call that is saved here counts.
        array = mx.array
        if not (
            isinstance(x, array) and isinstance(key_pool, array) and isinstance(value_pool, array)
        ):
            raise TypeError(
                f"x, key_pool and value_pool must be mlx.core.arrays, not {type(x).__name__}, "
                f"{type(key_pool).__name__} and {type(value_pool).__name__}"
            )
        native = library()
        blank = native.blank
        out, keys, values = blank(), blank(), blank()
        status = self._call(
            batch.handle,
            window or 0,
            id(x),
            id(key_pool),
            id(value_pool),
            id(out),
            id(keys),
            id(values),
        )
        if status:
            check(native, status)
        return out, keys, values


class AttentionBlock(_PagedBlock):
    """The attention half of a layer, on a paged KV cache.

    Its output is x + residual_scale * output_norm(O(attend(q, k, v))), where q, k and v are
    projections of input_norm(x), q and k normalised by their own norms and then rotated.

    Args:
        compute: How quantised matrices are multiplied.
        heads, kv_heads: Query heads, and the key/value heads that groups of them share.
        head_dim, v_dim: Elements of a query or key head, and of a value head.
        projections: The matrices of queries, keys and values, or one with the rows of all three.
        output: [width, heads * v_dim].
        input_norm, output_norm: Of width, or None.
        query_norm, key_norm: Of head_dim (each head by itself) or of a whole projection, or None.
        rope: Rotates queries and keys, or None.
        scale: Multiplies attention scores.
        softcap: 0 for none; else scores become softcap * tanh(score / softcap).
        sinks: [heads] logits that take part in the softmax without a value, or None.
    """

    def __init__(
        self,
        *,
        compute: Compute,
        heads: int,
        kv_heads: int,
        head_dim: int,
        v_dim: int,
        projections: Sequence[Matrix],
        output: Matrix,
        scale: float,
        input_norm: Norm | None = None,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        output_norm: Norm | None = None,
        rope: Rope | None = None,
        softcap: float = 0.0,
        sinks: mx.array | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        native = library()
        desc = native.ffi.new("pamx_attention_block_desc*")
        desc.compute = COMPUTES[compute]
        desc.heads, desc.kv_heads = heads, kv_heads
        desc.head_dim, desc.v_dim = head_dim, v_dim
        desc.residual_scale = residual_scale
        norms = (
            (desc.input_norm, input_norm),
            (desc.query_norm, query_norm),
            (desc.key_norm, key_norm),
            (desc.output_norm, output_norm),
        )
        # What the description points to must live until it has been copied.
        alive: list[Any] = [_fill_norm(native, to, norm) for to, norm in norms]
        if len(projections) == 1:
            desc.fused_qkv = projections[0].handle
        elif len(projections) == 3:
            desc.query, desc.key, desc.value = (p.handle for p in projections)
        else:
            raise ValueError(f"a block has 1 or 3 projections, not {len(projections)}")
        desc.output = output.handle
        if rope is not None:
            desc.rope = rope.handle
        desc.attention.scale, desc.attention.softcap = scale, softcap
        if sinks is not None:
            desc.sinks = _floats(native, sinks, heads, "sinks", alive)
        handle = native.ffi.new("pamx_attention_block**")
        check(native, native.lib.pamx_attention_block_create(desc, handle))
        self.handle: Any = native.ffi.gc(handle[0], native.lib.pamx_attention_block_free)
        self._call = functools.partial(native.lib.pamx_attention_block_apply, self.handle)


class LayerBlock(_PagedBlock):
    """A whole layer: an attention block, then an MLP block of the same width on what it gave.

    One operation instead of two, with the same bits.
    """

    def __init__(self, attention: AttentionBlock, mlp: MlpBlock) -> None:
        native = library()
        self._call = functools.partial(native.lib.pamx_layer_apply, attention.handle, mlp.handle)


class MlpBlock:
    """[x +] residual_scale * output_norm(down(act(gate(n)) * up(n))) with n = input_norm(x).

    Args:
        compute: How quantised matrices are multiplied.
        kind: The activation.
        projections: gate and up, both [hidden, inputs], or one matrix with gate's rows above up's
            (hidden must then be a multiple of 16).
        down: [outputs, hidden].
        input_norm: Of inputs, or None.
        output_norm: Of outputs, or None.
        residual: Whether x is added.
    """

    def __init__(
        self,
        *,
        compute: Compute,
        kind: GateKind,
        projections: Sequence[Matrix],
        down: Matrix,
        input_norm: Norm | None = None,
        output_norm: Norm | None = None,
        residual: bool = True,
        residual_scale: float = 1.0,
    ) -> None:
        native = library()
        desc = native.ffi.new("pamx_mlp_block_desc*")
        desc.compute, desc.gate_kind = COMPUTES[compute], GATES[kind]
        desc.residual, desc.residual_scale = residual, residual_scale
        norms = ((desc.input_norm, input_norm), (desc.output_norm, output_norm))
        # What the description points to must live until it has been copied.
        alive = [_fill_norm(native, to, norm) for to, norm in norms]
        if len(projections) == 1:
            desc.fused_gate_up = projections[0].handle
        elif len(projections) == 2:
            desc.gate, desc.up = (p.handle for p in projections)
        else:
            raise ValueError(f"an MLP has 1 or 2 projections, not {len(projections)}")
        desc.down = down.handle
        handle = native.ffi.new("pamx_mlp_block**")
        check(native, native.lib.pamx_mlp_block_create(desc, handle))
        self.handle: Any = native.ffi.gc(handle[0], native.lib.pamx_mlp_block_free)
        del alive

    def __call__(self, x: mx.array) -> mx.array:
        """Runs the block on x, [..., inputs]; the result is [..., outputs] in x's dtype."""
        native = library()
        out = native.blank()
        check(native, native.lib.pamx_mlp_block_apply(self.handle, array_id(x, "x"), id(out)))
        return out


def _floats(native: Library, array: mx.array, size: int, name: str, alive: list[Any]) -> Any:
    if array.shape != (size,):
        raise ValueError(f"{name} has shape {array.shape} instead of ({size},)")
    values: npt.NDArray[np.float32] = np.array(array.astype(mx.float32))
    alive.append(values)
    return native.ffi.from_buffer("float[]", values)


def _fill_norm(native: Library, to: Any, norm: Norm | None) -> list[Any]:
    alive: list[Any] = []
    if norm is not None:
        to.kind, to.size, to.eps = _NORMS[norm.kind], norm.size, norm.eps
        if norm.weight is not None:
            to.weight = _floats(native, norm.weight, norm.size, "a norm's weight", alive)
        if norm.bias is not None:
            to.bias = _floats(native, norm.bias, norm.size, "a norm's bias", alive)
    return alive
