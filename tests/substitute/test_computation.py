"""A model whose computation is replaced gives its own logits, at the level that it should reach."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import families
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers

import pamx
from pamx.attention.backend import backend_named
from pamx.attention.placeholders import UnsupportedAttentionError
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.errors import NativeError, RequestError
from pamx.native import blocks, small
from pamx.substitute import computation
from pamx.substitute.levels import ComputeMode, LayerLevel, Levels
from pamx.substitute.paged_model import PagedModel
from pamx.substitute.recipe import Recipe
from pamx.substitute.weights import MemoryStore, PackedWeights

PROMPT = [int(t) for t in np.random.default_rng(4).integers(1, 500, 60)]

FUSED, ATTENTION, OPERATIONS = "fused", "attention", "operations"
LEVELS = {
    "llama": FUSED,
    "qwen2": FUSED,
    "qwen3": FUSED,
    "olmo2": FUSED,
    "phi3": FUSED,
    "gemma": FUSED,
    "gemma3_text": FUSED,
    "glm4": FUSED,
    "granite": FUSED,
    "minicpm": FUSED,
    "starcoder2": ATTENTION,  # its MLP has no gate
    "gpt2": ATTENTION,
    "gpt_oss": ATTENTION,  # experts
    "qwen3_moe": ATTENTION,
    "cohere2": OPERATIONS,  # both halves beside each other
    "gpt_neox": OPERATIONS,
}


def bits_of(model: Module) -> dict[str, bytes]:
    return {
        name: bytes(memoryview(np.array(value.view(mx.uint8))))
        for name, value in tree_flatten(model.parameters())
    }


def dense_logits(model: Module) -> np.ndarray:
    return as_numpy(model(mx.array([PROMPT]), cache=make_prompt_cache(model)))


def as_numpy(logits: mx.array) -> np.ndarray:
    return np.array(logits.astype(mx.float32))


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


def level(paged: PagedModel) -> set[str]:
    return {
        ATTENTION if layer.level == FUSED and layer.reason else layer.level
        for layer in paged.compute.layers
    }


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("family", LEVELS)
def test_exact_logits_are_mlx_lm_s_and_closing_restores_every_bit(family: str, bits: int) -> None:
    if family == "minicpm" and bits:
        bits = 0  # mlx-lm does not run it quantised
    model = families.make(family, bits=bits)
    before = bits_of(model)
    classes = [type(m) for _, m in model.named_modules()]
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute="exact", block_size=8) as paged:
        assert level(paged) == {LEVELS[family]}
        assert len(paged.compute.layers) == len(paged.pool.layers)
        for chunks in ([60], [1, 15, 16, 28], [59, 1]):
            cache, start, found = paged.prompt_cache(), 0, []
            for size in chunks:
                found.append(as_numpy(model(mx.array([PROMPT[start : start + size]]), cache=cache)))
                start += size
            assert distance(np.concatenate(found, 1), expected) < 2e-5
        # mlx-lm's own caches still work, and none at all.
        assert distance(dense_logits(model), expected) < 2e-5
        assert distance(as_numpy(model(mx.array([PROMPT]))), expected) < 2e-5
    assert bits_of(model) == before
    assert [type(m) for _, m in model.named_modules()] == classes
    assert not any(n.startswith("_pamx") for _, m in model.named_modules() for n in vars(m))
    assert np.array_equal(dense_logits(model), expected)


def test_a_layer_that_occurs_twice_is_not_fused() -> None:
    model = families.make("llama")
    model.model.layers[1] = model.model.layers[0]
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute="exact") as paged:
        levels = [layer.level for layer in paged.compute.layers]
        assert levels[:2] == [OPERATIONS] * 2
        assert "more than once" in paged.compute.layers[0].reason
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 2e-5
    assert np.array_equal(dense_logits(model), expected)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3", "cohere2"])
def test_16_bit_logits_are_as_exact_as_mlx_lm_s(family: str, dtype: mx.Dtype) -> None:
    """Measured against the same weights in float32."""
    model, truth = families.make(family, dtype, bits=4), families.make(family, dtype, bits=4)
    truth.set_dtype(mx.float32)
    expected = dense_logits(truth)
    own = distance(dense_logits(model), expected)
    with PagedModel(model, context=128, compute="exact") as paged:
        assert level(paged) == {LEVELS[family]}
        logits = model(mx.array([PROMPT]), cache=paged.prompt_cache())
        assert logits.dtype == dtype
        assert paged.pool.layers[0].keys.dtype == dtype
        assert distance(as_numpy(logits), expected) < 1.1 * own


def test_a_layer_that_keeps_float16_from_overflowing_is_not_fused() -> None:
    """Gemma 3 clips its residual, in float16 alone."""
    model = families.make("gemma3_text", mx.float16)
    norm = model.layers[1].post_feedforward_layernorm
    norm.weight = norm.weight * 300
    with PagedModel(model, context=64, compute="exact") as paged:
        assert [layer.level for layer in paged.compute.layers] == [FUSED, OPERATIONS, FUSED]
        assert "large rows from overflowing" in paged.compute.layers[1].reason


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "cohere2", "starcoder2"])
def test_fast_is_near(family: str) -> None:
    model = families.make(family, bits=4)
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute="fast") as paged:
        assert paged.compute.mode == "fast"
        assert paged.pool.layers[0].keys.dtype == mx.float16
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert 1e-4 < distance(found, expected) < 0.15
    with PagedModel(model, context=128, compute="fast", kv_dtype=mx.float32) as paged:
        assert paged.pool.layers[0].keys.dtype == mx.float32


def with_values_past_float16() -> Module:
    """A float32 model that multiplies its values by 2^20 and its attention's output by 2^-20."""
    model = families.make("llama", bits=4)
    for layer in model.layers:
        for projection, factor in (
            (layer.self_attn.v_proj, 2.0**20),
            (layer.self_attn.o_proj, 2.0**-20),
        ):
            projection.scales = projection.scales * factor
            projection.biases = projection.biases * factor
    return model


@pytest.mark.parametrize("mode", ["fast", "mlx"])
def test_values_that_float16_cannot_hold_are_kept_in_float32(mode: ComputeMode) -> None:
    model = with_values_past_float16()
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute=mode) as paged:
        assert paged.kv_dtype == mx.float32
        assert paged.compute.mode == {"fast": "exact", "mlx": "mlx"}[mode]
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 1e-3


@pytest.mark.parametrize("mode", ["fast", "exact", "mlx"])
def test_values_that_float16_cannot_hold_are_not_stored_in_it_even_if_asked(
    mode: ComputeMode,
) -> None:
    with pytest.raises(UnsupportedAttentionError, match="differ by"):
        PagedModel(with_values_past_float16(), context=128, compute=mode, kv_dtype="float16")


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "phi3", "starcoder2", "cohere2"])
def test_a_row_has_the_same_bits_alone_in_chunks_and_in_company(
    family: str, mode: ComputeMode
) -> None:
    prompts = [PROMPT[:37], PROMPT[20:55], PROMPT[7:8]]
    model = families.make(family, bits=4)
    with PagedModel(model, context=512, compute=mode, block_size=8) as paged:

        def run(parts: list[tuple[int, int, int]]) -> list[np.ndarray]:
            """Runs (prompt, start, end) in one step; logits of each part's last row."""
            slices = [
                SequenceSlice(tuple(range(p * 8, p * 8 + 8)), end, end - start)
                for p, start, end in parts
            ]
            packing = Packing.SEQUENCE if len(parts) == 1 else Packing.ROWS
            step = Step(slices, packing, paged.pool.num_blocks, 8)
            tokens = [t for p, start, end in parts for t in prompts[p][start:end]]
            ends = accumulate(end - start for _, start, end in parts)
            rows = [end - 1 for end in ends]
            return list(as_numpy(paged.forward(step, mx.array(tokens), rows)))

        alone = [run([(p, 0, len(prompts[p]))])[0] for p in range(3)]
        together = run([(p, 0, len(prompts[p])) for p in range(3)])
        run([(0, 0, 11), (1, 0, 30)])
        chunked = run([(1, 30, 35), (2, 0, 1), (0, 11, 37)])
        for p in range(3):
            assert np.array_equal(alone[p], together[p])
            assert np.array_equal(alone[p], chunked[[1, 2, 0].index(p)])


@pytest.mark.parametrize("what", ["layer", "norm", "rope"])
def test_a_kernel_that_is_wrong_is_found_and_not_used(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused layer that differs costs the fusion, an operation that differs all but attention."""

    def off(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            out = function(*args, **kwargs)
            return (out[0] * 1.01, *out[1:]) if isinstance(out, tuple) else out * 1.01

        return wrong

    if what == "layer":
        monkeypatch.setattr(blocks.LayerBlock, "__call__", off(blocks.LayerBlock.__call__))
    elif what == "norm":
        monkeypatch.setattr(small, "rms_norm", off(small.rms_norm))
    else:
        monkeypatch.setattr(small.Rope, "__call__", off(small.Rope.__call__))
    model = families.make("llama")
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute="exact") as paged:
        if what == "layer":
            assert level(paged) == {OPERATIONS}
            assert "its numbers differ by" in paged.compute.layers[0].reason
        else:
            assert paged.compute.mode == "mlx"
            assert "cannot be replaced: On pages the model's logits" in paged.compute.reason
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 1e-4


def test_a_fast_mode_that_is_too_far_off_gives_way_to_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(computation, "TOLERANCE_IN_USE", 1e-3)
    model = families.make("llama", bits=4)
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute="fast") as paged:
        assert (paged.compute.mode, level(paged)) == ("exact", {FUSED})
        assert paged.pool.layers[0].keys.dtype == mx.float32
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 2e-5
        admission = paged.admission
    with PagedModel(model, context=128, compute="fast", admission=admission) as paged:
        assert paged.compute.mode == "exact"


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_moe", "gpt_oss", "minicpm", "cohere2"])
def test_what_was_found_out_is_written_down_and_not_found_out_again(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = families.make(family)
    with PagedModel(model, context=128, compute="fast") as paged:
        admission, levels = paged.admission, paged.compute
        expected = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
    assert admission.recipe is not None
    written = json.dumps(admission.recipe.as_json())
    assert Recipe.from_json(json.loads(written)) == admission.recipe

    def never(*_: Any) -> None:
        raise AssertionError("the model was watched again")

    monkeypatch.setattr(computation, "observe", never)
    monkeypatch.setattr(computation, "measure_reference", never)
    with PagedModel(model, context=128, compute="fast", admission=admission) as paged:
        assert paged.compute == levels
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert np.array_equal(found, expected)


def test_a_record_that_does_not_fit_the_model_is_made_anew() -> None:
    with PagedModel(families.make("qwen3"), context=64, compute="exact") as paged:
        admission = paged.admission
    model = families.make("llama")
    with PagedModel(model, context=64, compute="exact", admission=admission) as paged:
        assert level(paged) == {FUSED}
        assert paged.admission != admission


def test_adapters_that_are_added_later_take_part() -> None:
    """Also in a layer that was fused, and in no other."""
    model, other = families.make("llama", bits=4), families.make("llama", bits=4)

    def adapt(model: Module) -> None:
        config = {"rank": 4, "scale": 5.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
        linear_to_lora_layers(model, 1, config)
        lora = model.layers[-1].self_attn.q_proj
        lora.lora_b = mx.random.normal(lora.lora_b.shape, key=mx.random.key(5)) * 0.3
        lora.lora_a = mx.random.normal(lora.lora_a.shape, key=mx.random.key(6)) * 0.3
        model.eval()

    plain = dense_logits(other)
    adapt(other)
    expected = dense_logits(other)
    assert distance(expected, plain) > 1e-2
    with PagedModel(model, context=128, compute="exact") as paged:
        adapt(model)
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 2e-5
        assert paged._substitution._fused is not None
        assert len(paged._substitution._fused.fused) == 2
    assert type(model.layers[-1].self_attn.q_proj.linear) is nn.QuantizedLinear
    assert distance(dense_logits(model), expected) < 2e-5


def test_adapters_that_were_there_before_are_served_by_operations() -> None:
    model = families.make("llama", bits=4)
    linear_to_lora_layers(model, 1, {"rank": 4, "scale": 5.0, "dropout": 0.0})
    model.eval()
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute="exact") as paged:
        assert [layer.level for layer in paged.compute.layers] == [FUSED, FUSED, OPERATIONS]
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 2e-5


@pytest.mark.parametrize("path", ["layers.1.mlp.up_proj", "layers.1.input_layernorm"])
def test_a_weight_that_is_replaced_later_takes_part(path: str) -> None:
    model, other = families.make("llama"), families.make("llama")
    for each in (model, other):
        module = dict(each.named_modules())[f"model.{path}"]
        new = module.weight * 1.5
        if each is other:
            module.weight = new
    expected = dense_logits(other)
    with PagedModel(model, context=128, compute="exact") as paged:
        dict(model.named_modules())[f"model.{path}"].weight = new
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 2e-5
    assert distance(dense_logits(model), expected) < 1e-6


def test_where_the_native_library_does_not_serve_mlx_does() -> None:
    model = families.make("llama")
    classes = {type(m) for _, m in model.layers[0].mlp.named_modules()}
    with PagedModel(model, context=64, compute="fast", backend=backend_named("mlx")) as paged:
        assert paged.compute.mode == "mlx"
        assert paged.compute.summary().startswith("MLX computes all but attention.")
        assert paged.pool.layers[0].keys.dtype == mx.float32
        assert {type(m) for _, m in model.layers[0].mlp.named_modules()} == classes


def test_weights_that_cannot_be_packed_leave_the_model_with_mlx() -> None:
    class Full(MemoryStore):
        def matrix(self, key: str, *rest: Any) -> PackedWeights:
            if key.endswith("layers.1.mlp.down_proj"):
                raise NativeError("There is no memory.")
            return super().matrix(key, *rest)

    model = families.make("llama", bits=4)
    before, expected = bits_of(model), dense_logits(model)
    with PagedModel(model, context=128, compute="fast", weights=Full()) as paged:
        assert paged.compute.reason == "Its computation cannot be replaced: There is no memory."
        assert bits_of(model) == before
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 1e-4


def test_the_levels_say_what_and_why() -> None:
    with PagedModel(families.make("llama", bits=8), context=64, compute="fast") as paged:
        assert paged.compute.summary() == (
            "3 layers fused; output head: 8-bit weights, 15-bit activations"
        )
        assert str(paged.compute) == paged.compute.summary()
        assert paged.compute.table()[1:] == [
            "layers 0-2   fused: one native operation each",
            "output head  8-bit weights, 15-bit activations",
        ]
    with PagedModel(families.make("cohere2", bits=4), context=64, compute="fast") as paged:
        assert paged.compute.summary() == (
            "3 layers by operations (Attention's result is not added to its input before the "
            "second half); output head: 4-bit weights, 15-bit activations"
        )
    with PagedModel(families.make("gpt_oss"), context=64, compute="exact") as paged:
        assert paged.compute.table()[1:3] == [
            "layers 0-1   fused: Its attention is; its second half is not a gated MLP.",
            "output head  dense weights",
        ]
    with PagedModel(families.make("llama"), context=64, compute=None) as paged:
        assert paged.compute.table() == ["compute: mlx, as asked."]


def test_what_differs_has_a_line_of_its_own() -> None:
    whole, part = LayerLevel("a", "fused"), LayerLevel("b", "operations", "It has two norms.")
    table = Levels("exact", "Because.", (whole, whole, part, whole)).table()
    assert table == [
        "compute: exact. Because.",
        "layers 0-1  fused: one native operation each",
        "layer 2     by operations: It has two norms.",
        "layer 3     fused: one native operation each",
    ]


@pytest.mark.parametrize("name", ["quick", "", 3, True, ["fast"]])
def test_modes_that_do_not_exist(name: Any) -> None:
    with pytest.raises(RequestError, match="compute must be one of 'fast', 'exact', 'mlx', not"):
        PagedModel(families.make("llama"), context=64, compute=name)
    with pytest.raises(RequestError, match=f"not {re.escape(repr(name))}"):
        pamx.load("no/such-model", compute=name)


@pytest.mark.parametrize("name", ["int3", mx.int8, 16, ["float16"]])
def test_page_types_that_do_not_exist(name: Any) -> None:
    with pytest.raises(RequestError, match="kv_dtype must be one of 'auto', 'float32'"):
        PagedModel(families.make("llama"), context=64, kv_dtype=name)
    with pytest.raises(RequestError, match=f"not {re.escape(repr(name))}"):
        pamx.load("no/such-model", kv_dtype=name)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("float16", mx.float16), (mx.bfloat16, mx.bfloat16), ("auto", mx.float32), (None, mx.float32)],
)
def test_page_types_by_name_and_by_value(wanted: Any, found: mx.Dtype) -> None:
    with PagedModel(families.make("llama"), context=64, kv_dtype=wanted) as paged:
        assert paged.kv_dtype == found


@pytest.mark.parametrize("mode", ["mlx", "exact", "fast"])
@pytest.mark.parametrize("pages", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_pages_of_any_type_under_a_model_of_any_type(
    dtype: mx.Dtype, pages: mx.Dtype, mode: ComputeMode
) -> None:
    model = families.make("qwen3", dtype, bits=4)
    expected = dense_logits(model)
    with PagedModel(model, context=128, compute=mode, kv_dtype=pages) as paged:
        assert (paged.compute.mode, paged.pool.layers[0].values.dtype) == (mode, pages)
        found = as_numpy(model(mx.array([PROMPT]), cache=paged.prompt_cache()))
        assert distance(found, expected) < 0.15


def test_packing_does_not_hold_the_weights_twice() -> None:
    """Each layer's arrays are gone before the next one's are packed."""
    model = families.make("llama", hidden_size=256, intermediate_size=2048, num_hidden_layers=4)
    held: list[int] = []

    class Counting(MemoryStore):
        def matrix(self, *args: Any) -> PackedWeights:
            packed = super().matrix(*args)
            held.append(mx.get_active_memory() + mx.get_cache_memory())
            return packed

    mx.clear_cache()
    with PagedModel(model, context=32, compute="exact", weights=Counting()) as paged:
        assert paged.compute.mode == "exact"
    assert held[-1] < held[0] / 3
    assert held == sorted(held, reverse=True)
