"""Tiny random models of many architectures, in float32."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten, tree_unflatten

COMMON: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}

# What each family adds to attention is in the comment; the rest of the config makes it small.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},  # grouped queries
    "qwen2": {},  # biases on q, k and v
    "qwen3": {"head_dim": 24},  # norms on q and k; head size that is no power of two
    "olmo2": {},  # norms after the projections
    "phi3": {"rope_scaling": None, "original_max_position_embeddings": 512},  # fused projection
    "gemma3_text": {  # windows on most layers, none on every third
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 12,
        "sliding_window_pattern": 3,
        "rope_local_base_freq": 10000.0,
        "rope_traditional": False,
    },
    "cohere2": {  # windows, and parallel attention and MLP
        "head_dim": 16,
        "layer_norm_eps": 1e-5,
        "sliding_window": 12,
        "sliding_window_pattern": 3,
        "logit_scale": 1.0,
        "attention_bias": False,
        "layer_norm_bias": False,
    },
    "gpt_oss": {  # attention sinks, and windows on every second layer
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 12,
        "intermediate_size": 64,
        "rope_scaling": None,
    },
    "starcoder2": {"norm_epsilon": 1e-5},  # one model with biases everywhere
    "gemma": {"head_dim": 16},  # weights of norms count from one
    "glm4": {  # norms after the halves, too; half of each head rotated, neighbours paired
        "head_dim": 16,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_traditional": True,
    },
    "granite": {  # factors on the residuals
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.3,
        "embedding_multiplier": 2.0,
        "logits_scaling": 2.0,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "minicpm": {  # factors that are computed, and a head that reads the embedding itself
        "scale_depth": 1.4,
        "scale_emb": 2.0,
        "dim_model_base": 64,
    },
    "qwen3_moe": {  # experts
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
    "gpt_neox": {  # queries, keys and values interleaved by head; halves side by side
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
    },
    "gpt2": {  # learned positions, every head its own keys
        "n_ctx": 512,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 3,
        "n_positions": 512,
        "layer_norm_epsilon": 1e-5,
    },
}


def make(
    family: str, dtype: mx.Dtype = mx.float32, bits: int = 0, group_size: int = 32, **changes: Any
) -> Module:
    """A model of `family` with random weights that make every token matter.

    Args:
        bits: Quantise what can be, MLX's affine way; 0: nothing.
    """
    arch = importlib.import_module(f"mlx_lm.models.{family}")
    config = {**COMMON, **FAMILIES.get(family, {}), "model_type": family, **changes}
    mx.random.seed(11)
    model: Module = arch.Model(arch.ModelArgs.from_dict(config))
    weights = []
    for name, value in tree_flatten(model.parameters()):
        if mx.issubdtype(value.dtype, mx.floating):
            noise = mx.random.normal(value.shape) * (0.05 if value.ndim >= 2 else 0.2)
            value = (value.astype(mx.float32) * 1.5 + noise).astype(dtype)
        weights.append((name, value))
    model.update(tree_unflatten(weights))
    if bits:
        quantize(
            model,
            group_size,
            bits,
            class_predicate=lambda _, m: (
                hasattr(m, "to_quantized") and m.weight.shape[-1] % group_size == 0
            ),
        )
    model.eval()
    mx.eval(model.parameters())
    return model
