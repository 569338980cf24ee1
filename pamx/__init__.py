"""pamx: local language models on MLX with a paged KV cache.

    import pamx

    with pamx.load() as engine:
        print(engine.generate("What is the capital of France?").text)

Importing this package is cheap: each name below loads what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pamx.before_mlx  # noqa: F401

if TYPE_CHECKING:
    from pamx.attention.layer import PagedAttentionLayer as PagedAttentionLayer
    from pamx.attention.sequence import PagedSequence as PagedSequence
    from pamx.attention.step import SequenceSlice as SequenceSlice
    from pamx.engine import Completion as Completion
    from pamx.engine import Delta as Delta
    from pamx.engine import Engine as Engine
    from pamx.engine import Sampling as Sampling
    from pamx.engine import load as load
    from pamx.engine.request import Request as Request
    from pamx.errors import PamxError as PamxError
    from pamx.kv import BlockManager as BlockManager
    from pamx.kv import BlockTable as BlockTable
    from pamx.substitute.paged_model import PagedModel as PagedModel

__version__: str

_HOME = {
    "BlockManager": "pamx.kv",
    "BlockTable": "pamx.kv",
    "Completion": "pamx.engine",
    "Delta": "pamx.engine",
    "Engine": "pamx.engine",
    "PagedAttentionLayer": "pamx.attention.layer",
    "PagedModel": "pamx.substitute.paged_model",
    "PagedSequence": "pamx.attention.sequence",
    "PamxError": "pamx.errors",
    "Request": "pamx.engine.request",
    "Sampling": "pamx.engine",
    "SequenceSlice": "pamx.attention.step",
    "load": "pamx.engine",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from pamx.version import pamx_version

        return pamx_version()
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
