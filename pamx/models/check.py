"""Is this folder a model that can be loaded: cheap checks before anything is mapped or built."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamx.errors import ModelError, NotAModelError
from pamx.models.regular import check_readable

__all__ = [
    "Contents",
    "check_claims",
    "check_folder",
    "check_safetensors",
    "contents_of",
    "read_json",
    "trained_context",
]

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
# What else is read of a folder, beside its weights.
_OTHER_FILES = (
    *("config.json", "generation_config.json", "model.safetensors.index.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", "*.tiktoken", "*.py"),
)
# Keys of config.json, in the words of all kinds of models, of which a claim too high would have
# mlx-lm build modules until memory ends.
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_SIZES = (
    "hidden_size", "n_embd", "d_model", "dim", "intermediate_size", "moe_intermediate_size",
    "shared_expert_intermediate_size", "n_inner", "ffn_dim", "vocab_size", "head_dim",
    "num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "n_kv_heads",
    "num_experts", "num_local_experts", "n_routed_experts",
)  # fmt: skip
# Of these there is no model without one; of the others there are, such as experts.
_NEEDED = (*_LAYERS, "hidden_size", "n_embd", "d_model", "vocab_size", "num_attention_heads")
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127  # models compute in no wider type
# So many of them cost nothing to build, and mlx-lm says best which weights they lack.
_HARMLESS_LAYERS, _HARMLESS_SIZE = 1000, 1 << 18
# A packed matrix has fewer columns than it stands for: with 1 bit a weight, so many times.
_MOST_PACKED = 32
_MAX_HEADER = 100_000_000  # the limit that the safetensors library sets
_AGAIN = "Download or copy the model again."
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Contents:
    """How many tensors there are, and the largest of all their dimensions."""

    tensors: int
    largest: int

    def __add__(self, other: Contents) -> Contents:
        return Contents(self.tensors + other.tensors, max(self.largest, other.largest))


def contents_of(shapes: Iterable[Iterable[int]]) -> Contents:
    """Counts tensors by their shapes."""
    largest = [max(shape, default=1) for shape in shapes]
    return Contents(len(largest), max(largest, default=0))


def check_claims(config: dict[str, Any], contents: Contents, where: str) -> None:
    """Check that there can be as much of a model as its config claims, before it is built.

    Every layer has a tensor, every size is a dimension of one, and every number is one that float32
    holds, or infinity. What is merely wrong is left to mlx-lm, which compares all shapes.

    Args:
        config: config.json.
        contents: Of all weight files.
        where: The folder or file, for the message.

    Raises:
        ModelError: Its weights cannot be of such a model.
    """
    for key, number in _numbers(config):
        if number != math.inf and number != -math.inf and abs(number) > _LARGEST_FLOAT32:
            raise ModelError(
                f"The config in {where} says that {key} is about 10^{_power_of_ten(number)}, a "
                "number that no model can compute with.",
                _AGAIN,
            )
    for part in (config, config.get("text_config")):
        for key, value in part.items() if isinstance(part, dict) else ():
            if key in _NEEDED and isinstance(value, int | float) and not value >= 1:
                raise ModelError(
                    f"The config in {where} says {key} = {value}, and a model has at least 1.",
                    _AGAIN,
                )
            if key in _LAYERS:
                most, of = _HARMLESS_LAYERS, f"there are {contents.tensors:,} tensors in all"
            elif key in _SIZES:
                most = max(_HARMLESS_SIZE, contents.largest * _MOST_PACKED)
                of = "no dimension of any tensor is near that"
            else:
                continue
            most = max(most, contents.tensors)
            if isinstance(value, int | float) and value > most:
                raise ModelError(
                    f"The weights in {where} do not belong to its config, which says {key} = "
                    f"{value:,}: {of}.",
                    _AGAIN,
                )


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, int | float]]:
    """All numbers in a value of JSON, with the names that they have."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, key)
    elif isinstance(value, int | float):
        yield key, value


def _power_of_ten(number: float) -> int:
    return len(str(abs(int(number)))) - 1


def check_folder(folder: Path) -> dict[str, Any]:
    """Check that ``folder`` holds a whole model and return its config.json.

    Only headers are read: a weight whose bytes changed in place is not noticed.

    Raises:
        NotAModelError: It is no model folder.
        ModelError: A file is missing, cut short, may not be read or is none (a named pipe), or its
            weights are in a format that mlx-lm does not read.
    """
    if not folder.is_dir():
        raise NotAModelError(f"There is no folder {folder}.", "Check the path.")
    for pattern in (*_TOKENIZER_FILES, *_OTHER_FILES):
        for file in folder.glob(pattern):
            check_readable(file)
    if not (folder / "config.json").is_file():
        raise _not_a_model(folder)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(
            f"{folder / 'config.json'} does not say what kind of model it describes "
            "(no model_type).",
            "Check that this is the folder of a language model.",
        )
    _check_index(folder)
    weights = sorted(folder.glob("model*.safetensors"))
    if not weights:
        raise _no_weights(folder)
    contents = Contents(0, 0)
    for file in weights:
        contents += check_safetensors(file)
    _check_numbering(folder, weights)
    check_claims(config, contents, str(folder))
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES) and not any(
        folder.glob("*.tiktoken")
    ):
        raise ModelError(
            f"{folder} holds no tokenizer (tokenizer.json or tokenizer.model).",
            "Copy the tokenizer files of the same model into it.",
        )
    return config


def check_safetensors(file: Path) -> Contents:
    """Check that a safetensors file is as long as its header says, and count what it holds.

    Format: https://github.com/huggingface/safetensors#format (a 64-bit length, a JSON header,
    then the data).

    Raises:
        ModelError: It is no file, cut short, too long, or its header cannot be right.
    """
    check_readable(file)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            raw = stream.read(length) if length <= min(_MAX_HEADER, size) else b""
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}.") from error
    if start == b"version ":
        raise ModelError(
            f"{file} is a Git LFS pointer, not the weights themselves.",
            "Run `git lfs pull` in that folder, or download the model again.",
        )
    if len(start) < 8 or 8 + length > size:
        raise ModelError(f"{file} is cut short or is not a safetensors file.", _AGAIN)
    try:
        header = json.loads(raw)
        end = _data_end(header)
        contents = contents_of(e["shape"] for n, e in header.items() if n != "__metadata__")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file} has a damaged header.", _AGAIN) from error
    expected = 8 + length + end
    if size != expected:
        what = "is cut short" if size < expected else "has bytes past its end"
        raise ModelError(f"{file} {what}: it holds {size} bytes of {expected}.", _AGAIN)
    return contents


def read_json(file: Path) -> Any:
    """The value of a JSON file.

    Raises:
        ModelError: It cannot be read or is not JSON.
    """
    try:
        return json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON: {error}.", _AGAIN) from error
    except RecursionError as error:
        raise ModelError(f"{file} is nested too deeply to be read.", _AGAIN) from error


def trained_context(config: dict[str, Any]) -> int | None:
    """The longest sequence that a model was trained for, if its config.json tells."""
    for part in (config, config.get("text_config")):
        if not isinstance(part, dict):
            continue
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    return None


def _data_end(header: dict[str, Any]) -> int:
    """Where the data of the last tensor ends; ValueError if a tensor cannot be where it says."""
    last = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        bits = _DTYPE_BITS.get(entry["dtype"])
        if start < 0 or (bits and (end - start) * 8 != bits * math.prod(entry["shape"])):
            raise ValueError(name)
        last = max(last, end)
    return last


def _check_index(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    weight_map = read_json(index)
    weight_map = weight_map.get("weight_map") if isinstance(weight_map, dict) else None
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index} lists no weights.", _AGAIN)
    absent = sorted({f for f in weight_map.values() if not (folder / str(f)).is_file()})
    if absent:
        raise ModelError(f"{folder} lacks {_some(absent)}, which its index lists.", _AGAIN)


def _check_numbering(folder: Path, weights: list[Path]) -> None:
    """Parts named ``-00001-of-00004`` must all be there, index or not."""
    for file in weights:
        if match := re.fullmatch(r"(.*)-\d{5}-of-(\d{5})", file.stem):
            total = int(match[2])
            names = [f"{match[1]}-{i:05d}-of-{match[2]}.safetensors" for i in range(1, total + 1)]
            if absent := [name for name in names if not (folder / name).is_file()]:
                raise ModelError(f"{folder} lacks {_some(absent)}.", _AGAIN)


def _not_a_model(folder: Path) -> NotAModelError:
    if ggufs := sorted(path.name for path in folder.glob("*.gguf")):
        return NotAModelError(
            f"{folder} is a folder with GGUF files ({_some(ggufs)}) and no config.json.",
            f"Name the file itself: {folder / ggufs[0]}.",
        )
    return NotAModelError(
        f"{folder} is not a model folder: it holds no config.json.",
        "Name the folder that holds config.json, the safetensors files and the tokenizer.",
    )


def _no_weights(folder: Path) -> ModelError:
    others = [
        kind
        for kind, pattern in (
            ("PyTorch .bin", "pytorch_model*.bin"),
            ("PyTorch .pth", "*.pth"),
            ("GGUF", "*.gguf"),
            ("other safetensors", "*.safetensors"),
        )
        if any(folder.glob(pattern))
    ]
    found = f"; it has {' and '.join(others)} files" if others else ""
    return ModelError(
        f"{folder} holds no weights that mlx-lm reads (model*.safetensors){found}.",
        "Use a safetensors version of the model, or convert it with `mlx_lm.convert`.",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
