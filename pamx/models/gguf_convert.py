"""Converting a GGUF file to a folder that mlx-lm loads, without loss on the CPU."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from pamx.errors import ModelError
from pamx.models.gguf_arch import (
    Architecture,
    architecture_of,
    missing_biases,
    mlx_name,
    model_config,
    to_mlx_rows,
)
from pamx.models.gguf_file import Gguf, open_gguf
from pamx.models.gguf_quants import GROUP_SIZE, affine, affine_bits, dense
from pamx.models.gguf_target import Dtype
from pamx.models.gguf_tokenizer import GgufTokenizer, read_tokenizer

__all__ = ["convert", "quantization_config"]

# A part of the weights is written once it reaches this size: what bounds the memory needed.
_SHARD_BYTES = 1 << 31


def convert(source: Path, folder: Path, dtype: Dtype) -> None:
    """Write the model of a GGUF file into ``folder``.

    Quantised weights keep their own quantisation where MLX has an exact equal (see
    ``gguf_quants``) and become dense otherwise.

    Args:
        source: The GGUF file.
        folder: An existing, empty folder.
        dtype: Type of scales and dense weights.

    Raises:
        ModelError: The file is damaged, or holds something that cannot be converted.
        OSError: ``folder`` cannot be written.
    """
    gguf = open_gguf(source)
    architecture = architecture_of(gguf)
    config = model_config(architecture, gguf)
    tokenizer = read_tokenizer(gguf, config["max_position_embeddings"])
    vocabulary = tokenizer.tokenizer.get_vocab_size()
    if vocabulary > config["vocab_size"]:
        raise ModelError(
            f"{source} holds {vocabulary} tokens but embeddings for {config['vocab_size']}."
        )
    quantization = _write_weights(folder, _parameters(architecture, config, gguf), dtype)
    if quantization:
        config["quantization"] = quantization
    config |= {
        "torch_dtype": dtype,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": _one_or_many(tokenizer.eos_token_ids),
        "pad_token_id": tokenizer.pad_token_id,
    }
    _write_json(folder / "config.json", config)
    _write_tokenizer(folder, tokenizer)


_Part = tuple[str, dict[str, npt.NDArray[Any]], int | None]


def _parameters(architecture: Architecture, config: dict[str, Any], gguf: Gguf) -> Iterator[_Part]:
    """Each module parameter as (mlx-lm path, arrays by suffix, bits or None if dense)."""
    for name, tensor in gguf.tensors.items():
        if name == "rope_freqs.weight":
            continue  # in config.json, as rope_scaling
        target = mlx_name(architecture, name)
        if target is None:
            raise ModelError(
                f"{gguf.path} holds a tensor {name}, which mlx-lm's {architecture.model_type} "
                "model has no place for.",
                "Use the model's original weights from the Hugging Face Hub instead.",
            )
        rows = to_mlx_rows(architecture, config, name, tensor.data)
        path, kind = target.rsplit(".", 1)
        if (bits := affine_bits(tensor.tensor_type)) and kind == "weight" and rows.ndim == 2:
            packed = affine(rows, tensor.tensor_type)
            scaling = {"scales": packed.scales, "biases": packed.biases}
            yield path, {"weight": packed.weight} | scaling, bits
        else:
            yield path, {kind: dense(rows, tensor.tensor_type)}, None
    for name in missing_biases(architecture, config, gguf):
        target = mlx_name(architecture, name)
        assert target is not None
        rows_out = int(gguf.tensors[name.removesuffix("bias") + "weight"].shape[-1])
        yield target.removesuffix(".bias"), {"bias": np.zeros(rows_out, np.float32)}, None


def _write_weights(folder: Path, parameters: Iterator[_Part], dtype: Dtype) -> dict[str, Any]:
    """Write safetensors and their index; returns config.json's ``quantization``."""
    bits_of: dict[str, int] = {}
    shard: dict[str, npt.NDArray[Any]] = {}
    shards: list[list[str]] = []

    def write_shard() -> None:
        _save(shard, folder / f"model-{len(shards)}.safetensors")
        shards.append(list(shard))
        shard.clear()

    for path, arrays, bits in parameters:
        shard |= {f"{path}.{suffix}": a for suffix, a in _cast(arrays, dtype).items()}
        if bits:
            bits_of[path] = bits
        if sum(a.nbytes for a in shard.values()) >= _SHARD_BYTES:
            write_shard()
    if shard:
        write_shard()
    _name_shards(folder, shards)
    return quantization_config(bits_of) if bits_of else {}


def quantization_config(bits_of: Mapping[str, int]) -> dict[str, Any]:
    """config.json's ``quantization`` for modules of so many bits each."""
    widths = list(bits_of.values())
    usual = max(set(widths), key=widths.count)
    each = {
        path: {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}
        for path, bits in bits_of.items()
    }
    return {"group_size": GROUP_SIZE, "bits": usual, "mode": "affine"} | each


def _save(arrays: dict[str, npt.NDArray[Any]], file: Path) -> None:
    file.touch()
    mode = stat.S_IMODE(file.stat().st_mode)  # as the umask has it; the library's own is 0600
    try:
        save_file(arrays, file, {"format": "mlx"})
        file.chmod(mode)
    except SafetensorError as error:  # the only way it tells of a full disk is its text
        code = re.search(r"os error (\d+)", str(error))
        number = int(code[1]) if code else errno.EIO
        raise OSError(number, os.strerror(number)) from error


def _name_shards(folder: Path, shards: list[list[str]]) -> None:
    if len(shards) == 1:
        (folder / "model-0.safetensors").rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards):
        final = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"model-{i}.safetensors").rename(folder / final)
        weight_map |= dict.fromkeys(names, final)
    _write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def _cast(arrays: dict[str, npt.NDArray[Any]], dtype: Dtype) -> dict[str, npt.NDArray[Any]]:
    """Floats to ``dtype``; a parameter with a value that would overflow it stays float32."""
    if dtype == "float32":
        return arrays
    limit = float(np.finfo(np.float16).max)
    floats = [a for a in arrays.values() if a.dtype == np.float32]
    if any(np.any((np.abs(a) > limit) & np.isfinite(a)) for a in floats):
        return arrays
    return {
        suffix: a.astype(np.float16) if a.dtype == np.float32 else a for suffix, a in arrays.items()
    }


def _write_tokenizer(folder: Path, tokenizer: GgufTokenizer) -> None:
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer.to_str(), "utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer.config)
    generation = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_ids,
        "pad_token_id": tokenizer.pad_token_id,
    }
    known = {key: value for key, value in generation.items() if value not in (None, [])}
    _write_json(folder / "generation_config.json", known)


def _one_or_many(ids: list[int]) -> int | list[int] | None:
    return ids if len(ids) > 1 else ids[0] if ids else None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")
