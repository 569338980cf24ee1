"""What a model name means: the built-in default, a folder, a GGUF file or a Hub repository."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pamx.errors import NotAModelError

__all__ = ["DEFAULT_MODEL", "BuiltIn", "Folder", "GgufFile", "HubRepo", "Source", "classify"]

DEFAULT_MODEL = "smollm2-135m"

_REPO_ID = re.compile(r"(?P<id>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII)


@dataclass(frozen=True)
class BuiltIn:
    """The default model."""


@dataclass(frozen=True)
class Folder:
    """A folder with a model in it."""

    path: Path


@dataclass(frozen=True)
class GgufFile:
    """One GGUF file."""

    path: Path


@dataclass(frozen=True)
class HubRepo:
    """A model repository on the Hugging Face Hub."""

    id: str
    revision: str | None = None


Source = BuiltIn | Folder | GgufFile | HubRepo


def classify(name: str | None, revision: str | None = None) -> Source:
    """Decide what ``name`` refers to; nothing is fetched.

    Something that exists on disk wins over a repository of the same name, as in mlx-lm.

    Args:
        name: Model name, path or ``org/name[@revision]``; None for the default model.
        revision: Branch, tag or commit; only for a Hub repository.

    Raises:
        NotAModelError: The name is nothing that exists here and no repository id, or a revision
            is given for something that has none or given twice.
    """
    source = _classify(name)
    if revision is None:
        return source
    if not isinstance(source, HubRepo):
        raise NotAModelError(
            f"A revision ({revision}) was given, but {name or DEFAULT_MODEL} has no revisions.",
            "Leave the revision out: only a Hugging Face Hub repository has them.",
        )
    if source.revision not in (None, revision):
        raise NotAModelError(
            f"Two revisions were given for {source.id}: {source.revision} and {revision}.",
            "Give one of them.",
        )
    return HubRepo(source.id, revision)


def _classify(name: str | None) -> Source:
    if name is None or name == DEFAULT_MODEL:
        return BuiltIn()
    path = _path(name)
    if path and path.is_dir():
        return Folder(path)
    if path and path.is_file():
        if path.suffix.lower() == ".gguf" or _starts_like_gguf(path):
            return GgufFile(path)
        raise NotAModelError(
            f"{name} is a file, but not a GGUF file.",
            "Name the folder that holds the model's config.json, or a .gguf file.",
        )
    if path:
        raise NotAModelError(
            f"{name} is no model: it is neither a file nor a folder.",
            "Name the folder that holds the model's config.json, or a .gguf file.",
        )
    if _looks_like_path(name):
        raise NotAModelError(
            f"There is no file or folder {name}.",
            "Check the path; a Hugging Face Hub model is named as org/name.",
        )
    if match := _REPO_ID.fullmatch(name):
        return HubRepo(match["id"], match["revision"])
    raise NotAModelError(
        f"No model is called {name!r}.",
        f"Did you mean {DEFAULT_MODEL}?"
        if get_close_matches(name.lower(), [DEFAULT_MODEL])
        else f"Name the built-in {DEFAULT_MODEL}, a Hub repository as org/name, a model folder or "
        "a .gguf file.",
    )


def _path(name: str) -> Path | None:
    """``name`` as a path, if that is there."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no home folder, a null character
        return None


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "~", os.sep))
        or name.endswith(("/", ".gguf", ".safetensors"))
        or name.count("/") > 1 + name.partition("@")[2].count("/")
        or "\\" in name
    )


def _starts_like_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False
