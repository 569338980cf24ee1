"""Norms, ropes and gates are known by what they ask of MLX, and computed the same."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import activations, gemma, rope_utils

from pamx.substitute.kinds import gate_of, norm_of, rope_of
from pamx.substitute.small_ops import SmallOperations

ROPES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "linear": {"type": "linear", "factor": 4.0},
    "llama3": {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128},
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "longrope": {
        "type": "longrope",
        "original_max_position_embeddings": 128,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + i for i in range(8)],
    },
    "proportional": {"type": "proportional", "partial_rotary_factor": 0.5},
}


class Holder(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part


def replaced(part: nn.Module, *args: Any, **kwargs: Any) -> tuple[mx.array, mx.array]:
    """A module's result, and its result when it is replaced."""
    holder = Holder(part)
    expected = part(*args, **kwargs)
    mx.eval(expected)
    operations = SmallOperations(holder)
    found = holder.part(*args, **kwargs)
    mx.eval(found)
    assert "Pamx" in graph_names(holder, *args, **kwargs)
    operations.undo()
    assert type(holder.part).__module__ in (type(part).__module__, "builtins")
    return expected, found


def graph_names(holder: Holder, *args: Any, **kwargs: Any) -> str:
    """The names of the operations that the part queues."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        mx.export_to_dot(str(path), holder.part(*args, **kwargs))
        return path.read_text()


@pytest.mark.parametrize("dims", [16, 24])
@pytest.mark.parametrize("kind", ROPES)
def test_every_rope_of_mlx_lm_is_replaced_and_rotates_the_same(kind: str, dims: int) -> None:
    """Also past the elements that are rotated, and with a position for each row."""
    rope = rope_utils.initialize_rope(16, 10000.0, False, ROPES[kind], 512)
    for offset in (0, 300, mx.array([3, 90, 511])):
        expected, found = replaced(rope, mx.random.normal((3, 2, 5, dims)), offset=offset)
        np.testing.assert_allclose(np.array(found), np.array(expected), atol=2e-5)


def test_a_rope_whose_frequencies_depend_on_the_position_stays() -> None:
    dynamic = {"type": "dynamic", "factor": 2.0}
    assert rope_of(rope_utils.initialize_rope(16, 10000.0, False, dynamic, 512)) is None


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize(
    "norm",
    [nn.RMSNorm(64), nn.LayerNorm(64), nn.LayerNorm(64, bias=False), gemma.RMSNorm(64)],
    ids=["rms", "layer", "layer-without-bias", "gemma"],
)
def test_norms_are_replaced_and_give_the_same(norm: nn.Module, dtype: mx.Dtype) -> None:
    norm.update({k: mx.random.normal((64,)).astype(dtype) for k in norm.parameters()})
    expected, found = replaced(norm, mx.random.normal((3, 5, 64)).astype(dtype))
    assert found.dtype == expected.dtype == dtype
    tolerance = {mx.float32: 1e-5, mx.float16: 1e-2, mx.bfloat16: 1e-1}[dtype]
    np.testing.assert_allclose(
        np.array(found.astype(mx.float32)), np.array(expected.astype(mx.float32)), atol=tolerance
    )


def test_what_does_more_than_a_norm_is_none() -> None:
    class Scaled(nn.RMSNorm):
        def __call__(self, x: mx.array) -> mx.array:
            return 2 * mx.fast.rms_norm(x, self["weight"], self.eps)

    class Before(nn.RMSNorm):
        def __call__(self, x: mx.array) -> mx.array:
            return mx.fast.rms_norm(x + 1, self["weight"], self.eps)

    assert norm_of(nn.RMSNorm(8)) is not None
    assert norm_of(Scaled(8)) is None
    assert norm_of(Before(8)) is None


def test_gates_are_known_by_their_values() -> None:
    assert gate_of(activations.swiglu) == "silu"
    assert gate_of(lambda gate, up: nn.gelu_approx(gate) * up) == "gelu_tanh"
    assert gate_of(lambda gate, up: nn.gelu(gate) * up) == "gelu"
    assert gate_of(lambda gate, up: nn.relu(gate) * up) == "relu"
    assert gate_of(activations.swiglu_oai) is None
    assert gate_of(lambda gate, up: nn.silu(up) * gate) is None
    assert gate_of(nn.silu) is None


def test_a_norm_whose_weight_is_replaced_computes_with_the_new_one() -> None:
    holder = Holder(nn.RMSNorm(8))
    operations = SmallOperations(holder)
    x = mx.random.normal((2, 8))
    before = holder.part(x)
    holder.part.weight = mx.full((8,), 3.0)
    np.testing.assert_allclose(np.array(holder.part(x)), np.array(3 * before), rtol=1e-5)
    operations.undo()
    assert type(holder.part) is nn.RMSNorm
