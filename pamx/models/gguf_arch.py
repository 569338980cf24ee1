"""Which GGUF architectures pamx converts: tensor names, row order and config.json.

Tensor names and metadata keys: ggml's docs/gguf.md and the ``gguf`` package's constants. Anything
that is not listed here is refused by name, so that no part of a model is ever dropped silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pamx.errors import ModelError
from pamx.models.check import check_claims, contents_of
from pamx.models.gguf_file import Gguf

__all__ = [
    "Architecture",
    "architecture_of",
    "missing_biases",
    "mlx_name",
    "model_config",
    "to_mlx_rows",
]

_USE_ANOTHER = "Use the model's original weights from the Hugging Face Hub instead."


@dataclass(frozen=True)
class Architecture:
    """How one ``general.architecture`` maps to an mlx-lm model class.

    Attributes:
        model_type: ``model_type`` of config.json.
        hf_class: ``architectures`` of config.json.
        interleaved: The file holds the query and key rows of a head in the order of llama.cpp's
            interleaved rotation, not in the half-split order of mlx-lm.
        bias_switches: Keys of config.json, each with the parts of a layer that it gives biases.
        biases: Parts of a layer that always have biases.
        norms: Norms of each layer past the two that all have.
    """

    model_type: str
    hf_class: str
    interleaved: bool = False
    bias_switches: tuple[tuple[str, tuple[str, ...]], ...] = ()
    biases: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()


_ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        interleaved=True,
        bias_switches=(
            ("attention_bias", ("attn_q", "attn_k", "attn_v", "attn_output")),
            ("mlp_bias", ("ffn_gate", "ffn_up", "ffn_down")),
        ),
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", biases=("attn_q", "attn_k", "attn_v")),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", norms=("attn_q_norm", "attn_k_norm")),
}

_LAYER_MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_EXTRA_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

# Metadata of an architecture that the conversion reads, or that says nothing about arithmetic.
_KNOWN_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
}
# Keys that change nothing as long as they hold this value.
_HARMLESS = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "use_parallel_residual": False,
}


def architecture_of(gguf: Gguf) -> Architecture:
    """The architecture of a file.

    Raises:
        ModelError: It is not one that pamx converts, or the file describes a variant of it
            that mlx-lm's model class would compute differently.
    """
    name = gguf.require("general.architecture")
    if name not in _ARCHITECTURES:
        raise ModelError(
            f"{gguf.path} holds a model of the architecture {name!r}; from GGUF pamx reads "
            f"{', '.join(_ARCHITECTURES)}.",
            _USE_ANOTHER,
        )
    if int(gguf.metadata.get(f"{name}.expert_count", 0)) > 0:
        raise ModelError(
            f"{gguf.path} holds a mixture of experts, which pamx does not read from GGUF.",
            _USE_ANOTHER,
        )
    for key, value in gguf.metadata.items():
        short = key.removeprefix(f"{name}.")
        if short == key or short in _KNOWN_KEYS or _HARMLESS.get(short, ...) == value:
            continue
        raise ModelError(
            f"{gguf.path} sets {key} = {value!r}, which pamx does not know how to honour.",
            _USE_ANOTHER,
        )
    return _ARCHITECTURES[name]


def mlx_name(architecture: Architecture, name: str) -> str | None:
    """The mlx-lm parameter that a tensor becomes; None if there is none.

    A name ends in ``.weight`` or ``.bias``; a quantised weight brings its scales and biases.
    """
    if name in _TOP:
        return _TOP[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if not match:
        return None
    layer, part, kind = match.groups()
    switched = [part for _, parts in architecture.bias_switches for part in parts]
    if part in _LAYER_MATRICES and (
        kind == "weight" or part in architecture.biases or part in switched
    ):
        return f"model.layers.{layer}.{_LAYER_MATRICES[part]}.{kind}"
    if kind == "weight" and part in _LAYER_NORMS:
        return f"model.layers.{layer}.{_LAYER_NORMS[part]}.weight"
    if kind == "weight" and part in architecture.norms:
        return f"model.layers.{layer}.{_EXTRA_NORMS[part]}.weight"
    return None


def to_mlx_rows(
    architecture: Architecture, config: dict[str, Any], name: str, rows: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Put the rows of a query or key tensor (weight or bias) into mlx-lm's order.

    llama.cpp stores the two halves of a rotated pair in adjacent rows of a head (``permute`` in
    its convert_hf_to_gguf.py); mlx-lm expects them half a head apart. Rows are moved whole, so
    that this works on packed blocks too.
    """
    part = name.split(".")[-2]
    if not architecture.interleaved or part not in ("attn_q", "attn_k"):
        return rows
    heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
    if len(rows) != heads * config["head_dim"] or config["head_dim"] % 2:
        raise ModelError(
            f"{name} has {len(rows)} rows, which are not {heads} heads {config['head_dim']} wide.",
            _USE_ANOTHER,
        )
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def missing_biases(architecture: Architecture, config: dict[str, Any], gguf: Gguf) -> list[str]:
    """Bias tensors that the model class wants and the file leaves out, because they are zero."""
    wanted = [
        f"blk.{layer}.{part}.bias"
        for layer in range(config["num_hidden_layers"])
        for switch, parts in architecture.bias_switches
        if config[switch]
        for part in parts
    ]
    return [name for name in wanted if name not in gguf.tensors]


def model_config(architecture: Architecture, gguf: Gguf) -> dict[str, Any]:
    """config.json without its ``quantization``, from metadata and tensor shapes.

    Raises:
        ModelError: A key is missing or has a value that mlx-lm's model cannot honour.
    """
    prefix = gguf.require("general.architecture")

    def get(key: str, default: Any = None) -> Any:
        value = gguf.metadata.get(f"{prefix}.{key}", default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ModelError(
                    f"{gguf.path} has a {prefix}.{key} that differs from layer to layer, which "
                    "pamx does not read from GGUF.",
                    _USE_ANOTHER,
                )
            return value[0]
        return value

    def need(key: str) -> int:
        gguf.require(f"{prefix}.{key}")
        return int(get(key))

    hidden, heads = need("embedding_length"), need("attention.head_count")
    kv_heads = int(get("attention.head_count_kv", heads))
    head_dim = int(get("attention.key_length", hidden // max(heads, 1)))
    gguf.require(f"{prefix}.attention.layer_norm_rms_epsilon")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{gguf.path} holds no token embedding.", _USE_ANOTHER)
    if min(heads, kv_heads, head_dim) <= 0 or heads % kv_heads:
        raise ModelError(
            f"{gguf.path} describes an impossible attention: {heads} heads, {kv_heads} key and "
            f"value heads, {head_dim} wide.",
            _USE_ANOTHER,
        )
    for key in ("attention.value_length", "rope.dimension_count"):
        if int(get(key, head_dim)) != head_dim:
            raise ModelError(
                f"{gguf.path} sets {prefix}.{key} = {get(key)} with heads {head_dim} wide, which "
                f"mlx-lm's {architecture.model_type} does not support.",
                _USE_ANOTHER,
            )
    if architecture.model_type == "qwen2" and head_dim * heads != hidden:
        raise ModelError(
            f"{gguf.path} has heads {head_dim} wide in a qwen2 model of width {hidden}, which "
            "mlx-lm does not support.",
            _USE_ANOTHER,
        )
    layers = {int(m[1]) for name in gguf.tensors if (m := re.match(r"blk\.(\d+)\.", name))}
    if layers != set(range(min(need("block_count"), len(layers) + 1))):
        raise ModelError(
            f"{gguf.path} holds {len(layers)} layers where its metadata says "
            f"{need('block_count')}.",
            "Download or copy the file again.",
        )
    config: dict[str, Any] = {
        "model_type": architecture.model_type,
        "architectures": [architecture.hf_class],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": need("block_count"),
        "intermediate_size": need("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon")),
        "vocab_size": int(embedding.shape[-1]),
        "max_position_embeddings": need("context_length"),
        "rope_theta": _shortest(get("rope.freq_base", 10000.0)),
        "rope_traditional": False,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
    }
    shapes = ([int(n) for n in tensor.shape] for tensor in gguf.tensors.values())
    check_claims(config, contents_of(shapes), str(gguf.path))
    for switch, parts in architecture.bias_switches:
        config[switch] = any(f"blk.0.{part}.bias" in gguf.tensors for part in parts)
    if scaling := _rope_scaling(gguf, prefix, config):
        config["rope_scaling"] = scaling
    return config


def _shortest(value: float) -> float:
    """The shortest decimal that gives the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope_scaling(gguf: Gguf, prefix: str, config: dict[str, Any]) -> dict[str, Any] | None:
    kind = gguf.metadata.get(f"{prefix}.rope.scaling.type", "none")
    factor = float(gguf.metadata.get(f"{prefix}.rope.scaling.factor", 1.0))
    legacy = float(gguf.metadata.get(f"{prefix}.rope.scale_linear", 1.0))
    factors = gguf.tensors.get("rope_freqs.weight")
    scaled = factors is not None and bool(np.any(factors.data != 1))
    if kind == "none" and legacy != 1:
        kind, factor = "linear", legacy
    if scaled and kind in ("none", "llama3"):
        return _llama3_scaling(gguf, prefix, config)
    if kind == "linear" and not scaled:
        return {"rope_type": "linear", "type": "linear", "factor": factor} if factor != 1 else None
    if kind == "none":
        return None
    raise ModelError(
        f"{gguf.path} scales its rotary embedding in a way ({kind}) that pamx cannot reproduce "
        "exactly from a GGUF file.",
        _USE_ANOTHER,
    )


def _llama3_scaling(gguf: Gguf, prefix: str, config: dict[str, Any]) -> dict[str, Any]:
    """Find the Llama 3 parameters that give the frequency factors stored in the file.

    The file stores only the factors; mlx-lm wants the four numbers they were computed from
    (formula: Llama 3.1's ``apply_scaling``). Low and high are 1 and 4 in every such model.
    """
    stored = np.asarray(gguf.tensors["rope_freqs.weight"].data, np.float64)
    half = config["head_dim"] // 2
    wavelength = 2 * np.pi * config["rope_theta"] ** (np.arange(half) / half)
    factor = float(stored.max())
    contexts = {8192, int(gguf.metadata.get(f"{prefix}.rope.scaling.original_context_length", 0))}
    for context in contexts - {0}:
        smooth = np.clip((context / wavelength - 1.0) / 3.0, 0.0, 1.0)
        if stored.shape == smooth.shape and np.allclose(
            stored, 1 / ((1 - smooth) / factor + smooth), rtol=1e-5, atol=0
        ):
            return {
                "rope_type": "llama3",
                "type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": context,
            }
    raise ModelError(
        f"{gguf.path} holds frequency factors (rope_freqs.weight) that are not those of Llama 3, "
        "which pamx cannot reproduce exactly.",
        _USE_ANOTHER,
    )
