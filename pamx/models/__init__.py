"""Finding, fetching, checking and loading models.

A name is the built-in default, a Hub repository, a folder or a GGUF file; ``load`` turns any of
them into an mlx-lm model and tokenizer. Importing this package imports neither.
"""

from pamx.models.catalogue import CachedModel, cached, full_path, remove, remove_packed
from pamx.models.load import LoadedModel, fetch, load, read_weights
from pamx.models.source import DEFAULT_MODEL

__all__ = [
    "DEFAULT_MODEL",
    "CachedModel",
    "LoadedModel",
    "cached",
    "fetch",
    "full_path",
    "load",
    "read_weights",
    "remove",
    "remove_packed",
]
