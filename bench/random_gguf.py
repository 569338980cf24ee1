"""A GGUF file of random weights in the shape of a qwen2 model of about 1B parameters.

    python bench/random_gguf.py [FILE]

Layers as in Qwen2.5-1.5B (width 1,536, 12 query and 2 KV heads of 128, 8,960 in the MLP, biases on
q, k and v), 20 of them; the vocabulary and its tokenizer are the default model's, so that no other
download is needed. Matrices are Q4_0, which llama.cpp repacks for its fastest CPU kernels; the
embedding, which is the output matrix too, is Q8_0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
from peer import BUILD, default_gguf

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP, CONTEXT = 20, 1536, 12, 2, 128, 8960, 8192
FILE = BUILD / "random-qwen2-1b.gguf"


def write(target: Path) -> Path:
    """Writes the file, unless it is there."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    donor = gguf.GGUFReader(default_gguf())
    scratch = target.with_suffix(".part")
    writer = gguf.GGUFWriter(scratch, "qwen2")
    writer.add_name("random qwen2 1B")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    vocabulary = 0
    for name, field in donor.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        writer.add_key_value(
            name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None
        )
        if name == "tokenizer.ggml.tokens":
            vocabulary = len(field.data)
    rng = np.random.default_rng(1)
    kinds = gguf.GGMLQuantizationType

    def matrix(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> None:
        values = rng.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def vector(name: str, size: int, mean: float, deviation: float) -> None:
        values = mean + deviation * rng.standard_normal(size, np.float32)
        writer.add_tensor(name, values.astype(np.float32))

    matrix("token_embd.weight", vocabulary, WIDTH, kinds.Q8_0)
    vector("output_norm.weight", WIDTH, 1.0, 0.1)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        vector(f"{at}attn_norm.weight", WIDTH, 1.0, 0.1)
        vector(f"{at}ffn_norm.weight", WIDTH, 1.0, 0.1)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{at}attn_{name}.weight", heads * HEAD_DIM, WIDTH, kinds.Q4_0)
            vector(f"{at}attn_{name}.bias", heads * HEAD_DIM, 0.0, 0.1)
        matrix(f"{at}attn_output.weight", WIDTH, HEADS * HEAD_DIM, kinds.Q4_0)
        matrix(f"{at}ffn_gate.weight", MLP, WIDTH, kinds.Q4_0)
        matrix(f"{at}ffn_up.weight", MLP, WIDTH, kinds.Q4_0)
        matrix(f"{at}ffn_down.weight", WIDTH, MLP, kinds.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.replace(target)
    return target


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE))
