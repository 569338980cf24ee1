"""Converted GGUF files against the same weights loaded straight into mlx-lm's model classes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QType
from samples import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    TOKENS,
    hf_weights,
    llama_config,
    llama_cpp_rows,
    random_blocks,
    reference_logits,
    write_gguf,
)

from pamx.errors import ModelError
from pamx.models.gguf_convert import convert

IDS = [1, 40, 77, 100, 5, 230, 31, 64, 250, 3]


def converted(source: Path, dtype: Any = "float32") -> Path:
    folder = source.with_suffix(".out")
    folder.mkdir()
    convert(source, folder, dtype)
    return folder


def logits(folder: Path) -> Any:
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    return np.array(model(mx.array([IDS]))[0].astype(mx.float32))


def close(ours: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("tied", [True, False])
def test_dense_llama_gives_the_logits_of_the_original(tmp_path: Path, tied: bool) -> None:
    weights = hf_weights(tied=tied)
    folder = converted(write_gguf(tmp_path / "m.gguf", weights))
    config = llama_config(tie_word_embeddings=tied)
    close(logits(folder), reference_logits(weights, config, IDS))
    assert "quantization" not in json.loads((folder / "config.json").read_text())


def test_every_quantised_type_in_one_model_gives_the_logits_of_its_values(tmp_path: Path) -> None:
    # Each type once, with query and key among them: their packed rows have to move too.
    types = {
        "token_embd.weight": QType.Q8_0,
        "output.weight": QType.Q6_K,
        "blk.0.attn_q.weight": QType.Q4_K,
        "blk.0.attn_k.weight": QType.Q5_K,
        "blk.0.attn_v.weight": QType.Q4_0,
        "blk.0.attn_output.weight": QType.Q4_1,
        "blk.0.ffn_gate.weight": QType.Q5_0,
        "blk.0.ffn_up.weight": QType.Q5_1,
        "blk.0.ffn_down.weight": QType.Q3_K,
        "blk.1.attn_q.weight": QType.Q2_K,
        "blk.1.attn_k.weight": QType.Q8_0,
    }
    weights = hf_weights(tied=False)
    quantised = {}
    for seed, (name, qtype) in enumerate(types.items()):
        # Blocks in the original's row order; the file gets the same rows in llama.cpp's.
        blocks = random_blocks(qtype, *weights[name].shape, seed)
        weights[name] = gguf.dequantize(blocks, qtype)
        quantised[name] = (qtype, np.ascontiguousarray(llama_cpp_rows(name, blocks)))
    folder = converted(write_gguf(tmp_path / "m.gguf", weights, quantised=quantised))
    config = llama_config(tie_word_embeddings=False)
    close(logits(folder), reference_logits(weights, config, IDS), 1e-4)
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    assert quantization["model.layers.0.self_attn.k_proj"]["bits"] == 5
    assert quantization["model.layers.1.self_attn.k_proj"]["bits"] == 8
    assert "model.layers.1.self_attn.q_proj" not in quantization


def test_weights_of_a_large_model_are_split_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pamx.models.check import check_folder

    monkeypatch.setattr("pamx.models.gguf_convert._SHARD_BYTES", 1 << 20)
    weights = hf_weights()
    folder = converted(write_gguf(tmp_path / "m.gguf", weights))
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    check_folder(folder)
    close(logits(folder), reference_logits(weights, llama_config(), IDS))


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_modes_that_the_umask_says(tmp_path: Path, umask: int, mode: int) -> None:
    """A cache that people share would be of no use to the others."""
    source = write_gguf(tmp_path / "m.gguf", hf_weights())
    before = os.umask(umask)
    try:
        folder = converted(source)
    finally:
        os.umask(before)
    assert {oct(p.stat().st_mode & 0o777) for p in folder.iterdir()} == {oct(mode)}


def test_biases_are_kept_and_those_left_out_are_zero(tmp_path: Path) -> None:
    parts = ("attn_q", "attn_k", "attn_v")
    weights = hf_weights(biases=parts)
    folder = converted(write_gguf(tmp_path / "m.gguf", weights))
    full = dict(weights)
    for layer in (0, 1):
        full[f"blk.{layer}.attn_output.bias"] = np.zeros(HIDDEN, np.float32)
    close(logits(folder), reference_logits(full, llama_config(attention_bias=True), IDS))

    weights = hf_weights(biases=("ffn_gate", "ffn_up", "ffn_down"))
    folder = converted(write_gguf(tmp_path / "mlp.gguf", weights))
    close(logits(folder), reference_logits(weights, llama_config(mlp_bias=True), IDS))


def test_head_width_of_its_own(tmp_path: Path) -> None:
    weights = hf_weights(head_dim=32)
    keys = {"llama.attention.key_length": 32, "llama.rope.dimension_count": 32}
    folder = converted(write_gguf(tmp_path / "m.gguf", weights, metadata=keys))
    close(logits(folder), reference_logits(weights, llama_config(head_dim=32), IDS))


def test_qwen2(tmp_path: Path) -> None:
    weights = hf_weights(biases=("attn_q", "attn_k", "attn_v"))
    source = write_gguf(
        tmp_path / "m.gguf",
        weights,
        architecture="qwen2",
        metadata={"tokenizer.ggml.pre": "qwen2", "qwen2.rope.freq_base": 1e6},
    )
    config = llama_config(model_type="qwen2", rope_theta=1e6)
    close(logits(converted(source)), reference_logits(weights, config, IDS))


def test_qwen3(tmp_path: Path) -> None:
    weights = hf_weights(norms=("attn_q_norm", "attn_k_norm"), head_dim=32)
    source = write_gguf(
        tmp_path / "m.gguf",
        weights,
        architecture="qwen3",
        metadata={"qwen3.attention.key_length": 32, "qwen3.attention.value_length": 32},
    )
    config = llama_config(model_type="qwen3", head_dim=32)
    close(logits(converted(source)), reference_logits(weights, config, IDS))


def test_linear_rope_scaling(tmp_path: Path) -> None:
    weights = hf_weights()
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    folder = converted(write_gguf(tmp_path / "m.gguf", weights, metadata=keys))
    config = llama_config(rope_scaling={"type": "linear", "factor": 4.0})
    expected = reference_logits(weights, config, IDS)
    close(logits(folder), expected)
    assert not np.allclose(expected, reference_logits(weights, llama_config(), IDS), atol=1e-2)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_recovered_from_its_factors(tmp_path: Path, factor: float) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = llama_config(rope_theta=500000.0, rope_scaling=scaling)
    weights = hf_weights()
    source = write_gguf(
        tmp_path / "m.gguf",
        {"rope_freqs.weight": _llama3_factors(HIDDEN // HEADS, 500000.0, factor)} | weights,
        metadata={"llama.rope.freq_base": 500000.0},
    )
    folder = converted(source)
    close(logits(folder), reference_logits(weights, config, IDS))
    written = json.loads((folder / "config.json").read_text())["rope_scaling"]
    assert {key: written[key] for key in scaling} == scaling


def _llama3_factors(dim: int, base: float, factor: float) -> Any:
    """The factors that convert_hf_to_gguf.py stores, one frequency at a time."""
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * base ** (i / dim)
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def test_half_precision_output_for_a_gpu(tmp_path: Path) -> None:
    weights = hf_weights()
    name = "blk.0.ffn_up.weight"
    blocks = random_blocks(QType.Q4_1, *weights[name].shape)
    weights[name] = gguf.dequantize(blocks, QType.Q4_1)
    weights["blk.1.ffn_norm.weight"][3] = 1e5  # past what float16 holds
    source = write_gguf(tmp_path / "m.gguf", weights, quantised={name: (QType.Q4_1, blocks)})
    folder = converted(source, "float16")
    stored = mx.load(str(folder / "model.safetensors"))
    assert stored["model.embed_tokens.weight"].dtype == mx.float16
    assert stored["model.layers.0.mlp.up_proj.scales"].dtype == mx.float16
    assert stored["model.layers.1.post_attention_layernorm.weight"].dtype == mx.float32
    assert stored["model.layers.1.post_attention_layernorm.weight"][3].item() == 1e5
    packed = [stored[f"model.layers.0.mlp.up_proj.{s}"] for s in ("weight", "scales", "biases")]
    exact = mx.dequantize(
        packed[0], packed[1].astype(mx.float32), packed[2].astype(mx.float32), 32, 4
    )
    np.testing.assert_array_equal(np.array(exact), weights[name])


def test_companion_files_say_what_the_metadata_says(tmp_path: Path) -> None:
    folder = converted(
        write_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.padding_token_id": 0})
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] == 512
    assert config["rms_norm_eps"] == 1e-5
    assert config["vocab_size"] == len(TOKENS)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 0}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "expert": ({"metadata": {"llama.expert_count": 8}}, "mixture of experts"),
    "yarn": ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "yarn"),
    "window": ({"metadata": {"llama.attention.sliding_window": 64}}, "sliding_window = 64"),
    "unknown": ({"metadata": {"llama.logit_scale": 2.0}}, "llama.logit_scale"),
    "rotary": ({"metadata": {"llama.rope.dimension_count": 32}}, "rope.dimension_count"),
    "value": ({"metadata": {"llama.attention.value_length": 32}}, "value_length"),
    "heads": ({"metadata": {"llama.attention.head_count": 3}}, "impossible attention"),
    "layers": ({"metadata": {"llama.attention.head_count_kv": [2, 1]}}, "layer to layer"),
    "split": ({"metadata": {"split.count": 3}}, "split over 3 files"),
    "tokens": ({"metadata": {"tokenizer.ggml.eos_token_id": 9999}}, "token 9999"),
    "pre": ({"metadata": {"tokenizer.ggml.pre": "martian"}}, "'martian'"),
    "kind": ({"metadata": {"tokenizer.ggml.model": "bert"}}, "'bert'"),
    "fewer layers": ({"metadata": {"llama.block_count": 1}}, "holds 2 layers"),
    "more layers": ({"metadata": {"llama.block_count": 1 << 31}}, "holds 2 layers"),
    "no eps": ({"without": ("llama.attention.layer_norm_rms_epsilon",)}, "rms_epsilon"),
    "no depth": ({"without": ("llama.block_count",)}, "llama.block_count"),
    "no vocabulary": ({"tokenizer": False}, "tokenizer.ggml.tokens"),
    "architecture": ({"architecture": "mamba"}, "'mamba'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, case: str) -> None:
    arguments, words = REFUSED[case]
    source = write_gguf(tmp_path / "m.gguf", **arguments)
    with pytest.raises(ModelError, match=re.escape(words)) as caught:
        converted(source)
    assert str(source) in caught.value.message


def test_heads_that_do_not_fit_their_rows(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", metadata={"llama.attention.head_count_kv": 4})
    with pytest.raises(ModelError, match=r"blk\.0\.attn_k\.weight has 128 rows"):
        converted(source)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_sinks.weight", (HEADS,)),
        ("blk.0.ffn_gate_exps.weight", (2, FFN, HIDDEN)),
        ("blk.0.attn_q_norm.weight", (HIDDEN // HEADS,)),
        ("rope_freqs.weight", (HIDDEN // HEADS // 2,)),
    ],
)
def test_a_tensor_without_a_place_is_never_dropped(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    extra = {name: np.full(shape, 1.5, np.float32)}
    source = write_gguf(tmp_path / "m.gguf", hf_weights() | extra)
    with pytest.raises(ModelError, match=re.escape(name)):
        converted(source)


@pytest.mark.usefixtures("pamx_home")
def test_a_missing_tensor_is_noticed_when_loading(tmp_path: Path) -> None:
    from pamx import models

    weights = hf_weights()
    del weights["blk.1.ffn_up.weight"]
    with pytest.raises(ModelError, match=r"mlp\.up_proj"):
        models.load(str(write_gguf(tmp_path / "m.gguf", weights)))


def test_the_sample_has_grouped_heads() -> None:
    # With as many key as query heads, a wrong head count in the row order would go unseen.
    assert HEADS != KV_HEADS
