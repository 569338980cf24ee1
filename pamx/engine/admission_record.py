"""Remembering that a model passed the admission check, so that it runs once and not at each start.

A verdict holds for one model folder, one build of pamx, one MLX and one kernel. Anything that
could change the numbers is part of its name; a lost or unreadable record only means that the
check runs again.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

import pamx
from pamx.errors import NativeError
from pamx.models import LoadedModel
from pamx.models.cache_dir import cache_root
from pamx.models.file_facts import file_facts
from pamx.native.loader import library, mlx_version
from pamx.substitute.admission import Admission
from pamx.substitute.levels import ComputeMode
from pamx.substitute.recipe import Recipe


def recall_admission(
    loaded: LoadedModel, compute: ComputeMode, kv_dtype: object
) -> Admission | None:
    """What this model passed in this mode and with such pages, or None if that is not known."""
    if loaded.config.get("model_file"):  # code of its own, which may do anything at any time
        return None
    try:
        value = json.loads(_record(loaded, compute, kv_dtype).read_text())
        recipe = value["recipe"]
        return Admission(
            rows=bool(value["rows"]),
            select=bool(value["select"]),
            recipe=None if recipe is None else Recipe.from_json(recipe),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remember_admission(
    loaded: LoadedModel, compute: ComputeMode, kv_dtype: object, admission: Admission
) -> None:
    """Notes what this model has passed; a full or read-only disk is no error."""
    record = _record(loaded, compute, kv_dtype)
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        scratch = record.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(admission)))
        scratch.replace(record)


def _record(loaded: LoadedModel, compute: ComputeMode, kv_dtype: object) -> Path:
    try:
        native = library()
        kernel = [native.build_hash, native.cpu_isa]
    except NativeError:
        kernel = ["mlx"]
    files = sorted(p for p in loaded.path.iterdir() if p.is_file())
    facts = {
        "compute": compute,
        "kv_dtype": str(kv_dtype),
        "config": loaded.config,
        "files": [file_facts(p.name, p.stat()) for p in files],
        "folder": str(loaded.path.resolve()),
        "device": str(mx.default_device()),
        "kernel": kernel,
        "pamx": pamx.__version__,
        "mlx": mlx_version(),
        "mlx-lm": version("mlx-lm"),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return cache_root() / "admitted" / hashlib.sha256(text.encode()).hexdigest()
