"""Tiny models made in the tests: as GGUF files, and as the mlx-lm folders they should become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as QType

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS, CONTEXT = 256, 256, 4, 2, 2, 512

Weights = dict[str, npt.NDArray[np.float32]]


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, by byte (GPT-2's encoder.py)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    table = {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [table[b] for b in range(256)]


MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2", "12 3"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool>"]
TOKENS = [*SPECIAL, *byte_alphabet(), *(m.replace(" ", "") for m in MERGES), *ADDED]
TYPES = [3] * len(SPECIAL) + [1] * (256 + len(MERGES)) + [4] * len(ADDED)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def hf_weights(
    seed: int = 0,
    *,
    tied: bool = True,
    biases: tuple[str, ...] = (),
    norms: tuple[str, ...] = (),
    head_dim: int = HIDDEN // HEADS,
) -> Weights:
    """Random weights by GGUF name, rows in the order of the original Hugging Face model."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), HIDDEN)}
    matrices = {
        "attn_q": (HEADS * head_dim, HIDDEN),
        "attn_k": (KV_HEADS * head_dim, HIDDEN),
        "attn_v": (KV_HEADS * head_dim, HIDDEN),
        "attn_output": (HIDDEN, HEADS * head_dim),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in matrices.items()}
        shapes |= {f"blk.{layer}.{part}.bias": matrices[part][:1] for part in biases}
        shapes |= {f"blk.{layer}.{part}.weight": (head_dim,) for part in norms}
        shapes |= {f"blk.{layer}.{part}.weight": (HIDDEN,) for part in ("attn_norm", "ffn_norm")}
    shapes["output_norm.weight"] = (HIDDEN,)
    if not tied:
        shapes["output.weight"] = (len(TOKENS), HIDDEN)
    return {
        name: (
            rng.normal(1, 0.2, shape)
            if "norm" in name
            else rng.normal(0, 0.3 if name.endswith("bias") else 0.08, shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def llama_cpp_rows(name: str, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Query and key rows as llama.cpp's converter stores them for the llama architecture."""
    part = name.split(".")[-2]
    if part not in ("attn_q", "attn_k"):
        return rows
    heads = HEADS if part == "attn_q" else KV_HEADS
    split = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def random_blocks(qtype: QType, rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Rows of blocks of any type with random bits, every float16 in them finite."""
    rng = np.random.default_rng(seed)
    width, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (rows * columns // width, size), dtype=np.uint8)
    halves = {
        QType.Q4_0: [0], QType.Q5_0: [0], QType.Q8_0: [0],
        QType.Q4_1: [0, 2], QType.Q5_1: [0, 2], QType.Q4_K: [0, 2], QType.Q5_K: [0, 2],
        QType.Q2_K: [80, 82], QType.Q3_K: [108], QType.Q6_K: [208],
    }[qtype]  # fmt: skip
    for at in halves:
        values = rng.normal(0, 0.02, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def write_gguf(
    path: Path,
    weights: Weights | None = None,
    *,
    architecture: str = "llama",
    quantised: dict[str, tuple[QType, npt.NDArray[np.uint8]]] | None = None,
    metadata: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    tokenizer: bool = True,
) -> Path:
    """Write a GGUF as llama.cpp's converter would.

    Args:
        weights: As ``hf_weights`` gives them.
        quantised: Blocks that replace a weight, rows already in the file's own order.
        metadata: Further keys, or other values for those written anyway.
        without: Metadata keys to leave out.
    """
    weights = hf_weights() if weights is None else weights
    values: dict[str, Any] = {
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": CONTEXT,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FFN,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
    }
    if tokenizer:
        values |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": TYPES,
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": TEMPLATE,
        }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (values | (metadata or {})).items():
        if key in without:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, array in weights.items():
        if quantised and name in quantised:
            qtype, blocks = quantised[name]
            writer.add_tensor(name, blocks, raw_dtype=qtype)
        else:
            stored = llama_cpp_rows(name, array) if architecture == "llama" else array
            writer.add_tensor(name, np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}


def hf_name(name: str) -> str:
    *layer, part, kind = name.split(".")
    prefix = f"model.layers.{layer[1]}." if layer else ""
    return f"{prefix}{HF_NAMES[part]}.{kind}"


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(TOKENS),
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    } | changes


def reference_logits(weights: Weights, config: dict[str, Any], ids: list[int]) -> Any:
    """Logits of mlx-lm's own model class with Hugging Face weights; shape (tokens, vocab)."""
    import importlib

    import mlx.core as mx

    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.load_weights([(hf_name(name), mx.array(a)) for name, a in weights.items()])
    return np.array(model(mx.array([ids]))[0])


def write_folder(folder: Path, **config: Any) -> Path:
    """A whole model folder in Hugging Face layout: config, weights and tokenizer."""
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(llama_config(**config)))
    save_file(
        {hf_name(name): array for name, array in hf_weights().items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    vocab = {text: i for i, text in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split()) for m in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
