"""What a record says about the loaded model and library, so that a figure can be traced to them."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamx.errors import NativeError

if TYPE_CHECKING:
    from pamx.engine import Engine

# Larger weight files are identified by size and both ends: hashing gigabytes takes longer than
# many a benchmark.
_WHOLE, _END = 256 << 20, 1 << 20


def of(engine: Engine) -> dict[str, Any]:
    """The fields "model" and "library" of a record."""
    return {"model": _model(engine), "library": library_facts()}


def _model(engine: Engine) -> dict[str, Any]:
    import mlx.core as mx

    paged = engine.paged
    config = _config(engine.path)
    found: dict[str, Any] = {
        "name": engine.name,
        "path": str(engine.path),
        "commit": _commit(engine.path),
        "sha256": _hashes(engine.path),
        "model_type": config.get("model_type"),
        "quantization": _quantization(config.get("quantization")),
        "trained_context": engine.trained_context,
        "compute": engine.compute.mode,
        "compute_summary": engine.compute.summary(),
        "attention": engine.attention.kernel,
        "attention_reason": engine.attention.reason,
        "device": str(mx.default_device()),
    }
    if paged is not None:
        pages = paged.pages()
        found["layers"] = [
            {"kv_heads": g.kv_heads, "k_dim": g.k_dim, "v_dim": g.v_dim, "window": g.window}
            for g in pages
        ]
        found["heads"] = query_heads(engine)
        found["kv_dtype"] = engine.kv_dtype
    return found


def query_heads(engine: Engine) -> int | None:
    """Attention heads of the model, if its config tells."""
    heads = _config(engine.path).get("num_attention_heads")
    return heads if isinstance(heads, int) else None


def _config(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    inner = value.get("text_config")
    return value | inner if isinstance(inner, dict) else value


def _quantization(value: Any) -> dict[str, Any] | None:
    """What holds for all layers; those that differ are only counted."""
    if not isinstance(value, dict):
        return None
    common = {k: v for k, v in value.items() if not isinstance(v, dict)}
    return common | {"layers_with_their_own": len(value) - len(common)}


def _commit(folder: Path) -> str | None:
    """Of a Hub repository: its files lie in snapshots/COMMIT."""
    return folder.name if folder.parent.name == "snapshots" else None


def _hashes(folder: Path) -> dict[str, str]:
    return {
        file.name: _sha256(file) for file in sorted(folder.glob("*.safetensors")) if file.is_file()
    }


def _sha256(file: Path) -> str:
    """Of all of a file; of a large one, of its size and first and last MiB, after "ends:"."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= _WHOLE:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256(str(size).encode() + stream.read(_END))
        stream.seek(-_END, 2)
        digest.update(stream.read())
    return f"ends:{digest.hexdigest()}"


def library_facts() -> dict[str, Any] | None:
    """The native library's build and threads; None if it does not serve."""
    from pamx.native import library

    with suppress(NativeError):
        native = library()
        return {
            "version": native.version,
            "build_hash": native.build_hash,
            "cpu_isa": native.cpu_isa,
            "mlx": native.mlx_loaded,
            "threads": int(native.lib.pamx_num_threads()),
        }
    return None
