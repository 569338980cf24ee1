"""Packed linear layers compute as MLX's do, and are the same modules to everybody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.dora import DoRALinear
from mlx_lm.tuner.lora import LoRALinear

from pamx.native.matrices import MatrixFormat
from pamx.substitute.linear import LinearLayers
from pamx.substitute.weights import MemoryStore, PackedWeights, SourceWeights

TOKENS = mx.array([[3, 5, 7, 11, 2, 9]])


class Holder(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def parameters(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def assert_same_bits(found: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        a, b = (np.array(x.view(mx.uint8)) for x in (found[name], array))
        assert np.array_equal(a, b), name


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("bits", [0, 2, 3, 4, 6, 8])
def test_logits_are_mlx_s_and_undoing_gives_every_bit_back(bits: int, dtype: mx.Dtype) -> None:
    model = families.make("qwen2", dtype, bits=bits)
    before = parameters(model)
    order = {name: list(m) for name, m in model.named_modules()}
    classes = [type(m) for _, m in model.named_modules()]
    expected = model(TOKENS)
    mx.eval(expected)

    layers = LinearLayers(model, MemoryStore(), "exact")
    assert len(layers.bits) == 3 * 7 + 1
    assert set(layers.bits.values()) == {bits}
    assert layers.head == ["model.embed_tokens"]
    found = model(TOKENS)
    difference = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max()
    # MLX itself rounds quantised products to 16 bits in between.
    limit = 1e-5 if dtype == mx.float32 else 0.2 if bits else 0.05
    assert float(difference / mx.abs(expected.astype(mx.float32)).max()) < limit
    assert_same_bits(parameters(model), before)  # whoever saves the model gets it whole
    layers.undo()

    assert_same_bits(parameters(model), before)
    assert {name: list(m) for name, m in model.named_modules()} == order
    assert [type(m) for _, m in model.named_modules()] == classes
    assert not any(n.startswith("_pamx") for _, m in model.named_modules() for n in vars(m))
    again = model(TOKENS)
    assert mx.array_equal(again, expected)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_every_group_size(group: int) -> None:
    x = mx.random.normal((5, 256))
    layer = nn.QuantizedLinear.from_linear(nn.Linear(256, 40), group, 4)
    model = Holder(part=layer)
    expected = layer(x)
    mx.eval(expected)
    layers = LinearLayers(model, MemoryStore(), "exact")
    np.testing.assert_allclose(np.array(model.part(x)), np.array(expected), atol=1e-5)
    layers.undo()


def test_quantised_lookups_are_mlx_s_bit_for_bit() -> None:
    model = families.make("llama", mx.bfloat16, bits=4)
    expected = model.model.embed_tokens(TOKENS)
    mx.eval(expected)
    layers = LinearLayers(model, MemoryStore(), "exact")
    assert mx.array_equal(model.model.embed_tokens(TOKENS), expected)
    layers.undo()


@pytest.mark.parametrize("adapter", [LoRALinear, DoRALinear])
@pytest.mark.parametrize("bits", [0, 4])
def test_adapters_over_packed_layers(adapter: Any, bits: int) -> None:
    """Made after packing; as exact as over MLX's own layers, and fused to the same weights."""

    def adapted(pack: bool) -> tuple[np.ndarray, dict[str, mx.array]]:
        model = families.make("llama", bits=bits)
        layers = LinearLayers(model, MemoryStore(), "exact") if pack else None
        for layer in model.layers:
            lora = adapter.from_base(layer.self_attn.q_proj, r=4)
            lora.lora_b = mx.random.normal(lora.lora_b.shape, key=mx.random.key(3)) * 0.05
            lora.lora_a = mx.random.normal(lora.lora_a.shape, key=mx.random.key(4)) * 0.05
            layer.self_attn.q_proj = lora
        logits = np.array(model(TOKENS))
        fused = parameters(model.layers[0].self_attn.q_proj.fuse(dequantize=True))
        if layers is not None:
            layers.undo()
        return logits, fused

    expected, weights = adapted(pack=False)
    found, same = adapted(pack=True)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert_same_bits(same, weights)


@pytest.mark.parametrize("weights", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("activations", [mx.float32, mx.float16, mx.bfloat16])
def test_results_have_the_dtype_that_mlx_gives_them(
    weights: mx.Dtype, activations: mx.Dtype
) -> None:
    layer = nn.Linear(32, 16)
    layer.set_dtype(weights)
    model, x = Holder(part=layer), mx.random.normal((3, 32)).astype(activations)
    expected = layer(x)
    layers = LinearLayers(model, MemoryStore(), "exact")
    found = model.part(x)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(
        np.array(found.astype(mx.float32)), np.array(expected.astype(mx.float32)), atol=2e-2
    )
    layers.undo()


def test_a_weight_that_is_assigned_is_used() -> None:
    model = Holder(part=nn.Linear(32, 16))
    x = mx.random.normal((3, 32))
    layers = LinearLayers(model, MemoryStore(), "exact")
    new = mx.random.normal((16, 32))
    model.part.weight = new
    expected = x @ new.T + model.part.bias
    np.testing.assert_allclose(np.array(model.part(x)), np.array(expected), atol=1e-5)
    assert layers.matrix_of("part") is None
    layers.undo()
    assert type(model.part) is nn.Linear
    assert mx.array_equal(model.part.weight, new)


def test_loading_other_weights_works_while_packed(tmp_path: Path) -> None:
    model, other = families.make("llama"), families.make("llama", bits=0)
    other.update({"model": {"norm": {"weight": other.model.norm.weight * 2}}})
    other.layers[0].mlp.up_proj.weight = other.layers[0].mlp.up_proj.weight * 1.5
    file = str(tmp_path / "weights.safetensors")
    other.save_weights(file)
    layers = LinearLayers(model, MemoryStore(), "exact")
    model.load_weights(file)
    np.testing.assert_allclose(np.array(model(TOKENS)), np.array(other(TOKENS)), atol=1e-4)
    layers.undo()


def test_what_cannot_be_packed_stays_and_says_why() -> None:
    class Doubled(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            return 2 * super().__call__(x)

    model = Holder(
        own=Doubled(64, 32),
        mxfp4=nn.QuantizedLinear.from_linear(nn.Linear(64, 32, bias=False), mode="mxfp4"),
        five=nn.QuantizedLinear.from_linear(nn.Linear(64, 32), 32, 5),
        lookup=nn.Embedding(50, 64),
        lm_head=nn.Linear(64, 50),
    )
    classes = {name: type(m) for name, m in model.named_modules()}
    layers = LinearLayers(model, MemoryStore(), "exact")
    assert layers.reasons == {
        "own": "Doubled computes in its own way.",
        "mxfp4": "Its weights are quantised as mxfp4.",
        "five": "Its weights have 5 bits in groups of 32.",
        "lookup": "A lookup in dense rows costs nothing.",
    }
    assert list(layers.bits) == layers.head == ["lm_head"]
    layers.undo()
    assert {name: type(m) for name, m in model.named_modules()} == classes


def test_a_store_that_knows_the_packed_form_reads_nothing() -> None:
    """Lazy weights stay unread then: they may be a large file."""

    class Known(MemoryStore):
        def __init__(self) -> None:
            self.packed: dict[str, PackedWeights] = {}
            self.made = 0

        def matrix(
            self, key: str, wanted: MatrixFormat, make: Callable[[], SourceWeights]
        ) -> PackedWeights:
            if key not in self.packed:
                self.made += 1
                self.packed[key] = super().matrix(key, wanted, make)
            return self.packed[key]

    store = Known()
    model = families.make("llama", bits=4)
    layers = LinearLayers(model, store, "exact")
    expected = model(TOKENS)
    mx.eval(expected)
    layers.undo()
    assert store.made == len(store.packed) == 22

    again = families.make("llama", bits=4)
    for _, module in again.named_modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            module.scales = mx.zeros_like(module.scales)  # whoever reads it gets other logits
    layers = LinearLayers(again, store, "exact")
    assert mx.array_equal(again(TOKENS), expected)
    assert store.made == 22
