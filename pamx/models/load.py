"""From a name to a loaded model: fetch, check, build."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamx.errors import ModelError
from pamx.models import gguf_target, store
from pamx.models.check import check_folder
from pamx.models.default import default_present, fetch_default
from pamx.models.hub import cached_hub, fetch_hub
from pamx.models.notice import say
from pamx.models.packed import open_weights
from pamx.models.source import DEFAULT_MODEL, BuiltIn, Folder, GgufFile, HubRepo, Source, classify

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx.nn.layers.base import Module
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from pamx.models.packed import WeightFile
    from pamx.native.matrices import Memory

__all__ = [
    "LoadedModel",
    "build",
    "check_source",
    "display_name",
    "fetch",
    "load",
    "present",
    "quiet",
    "read_tokenizer",
    "read_weights",
]

_GGUF_KEY_BYTES = 1 << 20


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        model: The mlx-lm model, weights evaluated unless it was loaded lazily.
        tokenizer: mlx-lm's wrapper; ``eos_token_ids`` holds every token that ends an answer.
        path: The folder it was loaded from.
        name: What to call it: the default's name, the repository id, or the folder or file name.
        config: config.json as mlx-lm used it.
        weights: Its packed weights, of a model that was loaded lazily, if they serve here.
    """

    model: Module
    tokenizer: TokenizerWrapper
    path: Path
    name: str
    config: dict[str, Any]
    weights: WeightFile[Memory] | None = None


def fetch(name: str | None = None, *, revision: str | None = None, progress: bool = True) -> Path:
    """Make a model present on this machine, converted if it is a GGUF, and check it.

    Args:
        name: The built-in default (None or its name), a model folder, a .gguf file, or a Hub
            repository as ``org/name[@revision]``.
        revision: Branch, tag or commit of a Hub repository.
        progress: Show progress on standard error, if that is a terminal.

    Returns:
        The folder, as ``mlx_lm.load`` takes it.

    Raises:
        ModelError: The model cannot be found, fetched, converted or is not whole.
    """
    source = classify(name, revision)
    folder = _fetch(source, progress)
    check_source(source, folder)
    return folder


def load(
    name: str | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
    lazy: bool = False,
) -> LoadedModel:
    """Fetch a model and load it with mlx-lm.

    Args:
        name, revision, progress: See ``fetch``.
        trust_remote_code: Allow Python code that comes with the model to run.
        lazy: Leave the weights on disk, so that those which will be replaced are never read; see
            ``read_weights``.

    Raises:
        ModelError: As ``fetch``; or mlx-lm does not know the model, its weights do not fit, or
            it needs its own code and ``trust_remote_code`` is False.
    """
    source = classify(name, revision)
    folder = _fetch(source, progress)
    config = check_source(source, folder)
    if config.get("model_file") is not None and not trust_remote_code:
        raise _needs_code(folder, str(config["model_file"]))
    # Before mlx-lm is imported: the check of what is in the file runs beside that.
    weights = open_weights(folder, config, progress) if lazy else None
    with quiet():
        model, config = build(folder, config["model_type"], trust_remote_code, lazy)
        tokenizer = read_tokenizer(folder, config, trust_remote_code)
    return LoadedModel(model, tokenizer, folder, display_name(source), config, weights)


def read_weights(loaded: LoadedModel) -> None:
    """Read what is left of the weights of a model that was loaded lazily.

    Only arrays that its modules hold are read: asking for all parameters would make a module that
    keeps its weights in another form give them back. Those that count as no parameters (a rope's
    frequencies) are among them: what is still lazy can be evaluated by this thread alone.

    Raises:
        ModelError: A file cannot be read.
    """
    import mlx.core as mx

    arrays = [
        array
        for module in loaded.model.modules()  # type: ignore[no-untyped-call]
        for value in dict.values(module)
        for array in _arrays(value)
    ]
    try:
        mx.eval(arrays)
    except (RuntimeError, OSError) as error:
        raise ModelError(
            f"The weights in {loaded.path} cannot be read: {_first_line(error)}.",
            "Download or copy the model again.",
        ) from error


def _arrays(value: Any) -> Iterator[mx.array]:
    """The arrays of a module's attribute; a module below it has its own turn."""
    import mlx.core as mx
    from mlx.nn.layers.base import Module

    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict) and not isinstance(value, Module):
        for item in value.values():
            yield from _arrays(item)


def _fetch(source: Source, progress: bool) -> Path:
    match source:
        case BuiltIn():
            return fetch_default(progress)
        case Folder(path):
            return path
        case GgufFile(path):
            return _fetch_gguf(path, progress)
        case HubRepo():
            return fetch_hub(source, progress)


def check_source(source: Source, folder: Path) -> dict[str, Any]:
    """``check_folder``, with advice that helps for a model in a cache."""
    try:
        return check_folder(folder)
    except ModelError as error:
        if not isinstance(source, HubRepo | BuiltIn):
            raise
        name = source.id if isinstance(source, HubRepo) else DEFAULT_MODEL
        again = f"If it should be whole, run `pamx models rm {name}` and load it again."
        raise ModelError(error.message, again) from error


def display_name(source: Source) -> str:
    """What to call a model."""
    match source:
        case BuiltIn():
            return DEFAULT_MODEL
        case Folder(path):
            return path.resolve().name
        case GgufFile(path):
            return path.stem
        case HubRepo(repo_id, _):
            return repo_id


def _fetch_gguf(path: Path, progress: bool) -> Path:
    """The converted form of a local GGUF file, from the cache if it has not changed."""
    path = path.resolve()
    dtype = gguf_target.dtype_for_device()
    slug, key = _gguf_place(path, dtype)
    if folder := store.current(slug, key):
        return folder
    with store.lock(slug, progress):
        if folder := store.current(slug, key):
            return folder
        from pamx.models.gguf_convert import convert

        say(f"Converting {path.name}, once.", progress)
        return store.publish(
            slug, str(path), "gguf", key, lambda folder: convert(path, folder, dtype)
        )


def present(source: Source) -> Path | None:
    """The folder of a model that is here and whole or converted already; nothing is fetched.

    Raises:
        ModelError: A folder of that name is damaged.
    """
    match source:
        case BuiltIn():
            return default_present()
        case Folder(path):
            return path
        case GgufFile(path):
            return store.current(*_gguf_place(path.resolve(), gguf_target.dtype_for_device()))
        case HubRepo():
            return cached_hub(source)


def _gguf_place(path: Path, dtype: str) -> tuple[str, str]:
    """Name and key of a GGUF file's converted form in the cache."""
    where = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    slug = f"gguf-{path.stem[:60]}-{where}--{dtype}"
    return slug, f"{_gguf_key(path)}:{gguf_target.CONVERTER_VERSION}:{dtype}"


def _gguf_key(path: Path) -> str:
    """Identifies a file's content without reading all of it.

    Size, modification time and a hash of the first and last MiB: hashing tens of gigabytes at
    every start would take longer than loading them.
    """
    try:
        facts = path.stat()
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_GGUF_KEY_BYTES))
            file.seek(max(0, facts.st_size - _GGUF_KEY_BYTES))
            digest.update(file.read(_GGUF_KEY_BYTES))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    return f"{facts.st_size}-{facts.st_mtime_ns}-{digest.hexdigest()}"


def build(folder: Path, model_type: str, trust: bool, lazy: bool) -> tuple[Module, dict[str, Any]]:
    """The mlx-lm model of a checked folder, and its config.json as mlx-lm used it.

    Args:
        folder: The folder.
        model_type: Its kind, for messages.
        trust: Allow Python code that comes with the model to run.
        lazy: Leave the weights on disk.

    Raises:
        ModelError: mlx-lm does not know it, or its weights and its config do not fit.
    """
    from mlx_lm.utils import load_model

    try:
        model, config = load_model(folder, lazy=lazy, trust_remote_code=trust)
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error}.") from error
    except Exception as error:  # a model's config and code can fail in any way
        reason = _first_line(error)
        if "not supported" in reason and reason.startswith("Model type"):
            raise ModelError(
                f"mlx-lm does not know models of the type {model_type!r} ({folder}).",
                "A newer mlx-lm may; otherwise choose a model of another kind.",
            ) from error
        raise ModelError(
            f"The model in {folder} cannot be built: {reason}.",
            "Its weights and its config.json do not belong together, or mlx-lm does not support "
            "this variant.",
        ) from error
    return model, config


def read_tokenizer(folder: Path, config: dict[str, Any], trust: bool) -> TokenizerWrapper:
    """The tokenizer of a model's folder.

    Raises:
        ModelError: It cannot be loaded.
    """
    from mlx_lm.utils import load_tokenizer

    try:
        return load_tokenizer(
            folder, {"trust_remote_code": trust}, eos_token_ids=config.get("eos_token_id")
        )
    except Exception as error:  # transformers raises all kinds
        if "trust_remote_code" in str(error):
            raise _needs_code(folder, "its tokenizer") from error
        raise ModelError(
            f"The tokenizer in {folder} cannot be loaded: {_first_line(error)}.",
            "Download or copy the model again; if it stays so, its tokenizer is not supported.",
        ) from error


def _needs_code(folder: Path, what: str) -> ModelError:
    return ModelError(
        f"The model in {folder} needs Python code of its own to run ({what}).",
        "If you trust its author, run this again with --trust-remote-code.",
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    lines = [line.strip(" .") for line in text.splitlines() if line.strip()]
    shown = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return shown if len(shown) <= 300 else shown[:297] + "..."


@contextmanager
def quiet() -> Iterator[None]:
    """Use mlx-lm without transformers' advice on standard error."""
    import pamx.quiet_mlx_lm  # noqa: F401

    noisy = logging.getLogger("transformers")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        noisy.setLevel(level)
