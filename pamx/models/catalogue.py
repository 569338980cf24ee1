"""Which models are on this machine, and deleting one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pamx.errors import ModelError
from pamx.models import packed, store
from pamx.models.cache_dir import cache_root, disk_errors

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

__all__ = ["CachedModel", "cached", "full_path", "remove", "remove_packed"]


@dataclass(frozen=True)
class CachedModel:
    """A model on disk.

    Attributes:
        name: What ``load`` takes: the default's name, the path of the GGUF file that was
            converted, or a repository id.
        path: The folder that mlx-lm loads.
        size_bytes: Disk space of that folder's files; 0 if it is the user's own.
        source: Where it came from; "folder" is one of the user's own.
        revision: Commit of a Hub repository; None otherwise.
        packed_bytes: Disk space of its packed weights.
    """

    name: str
    path: Path
    size_bytes: int
    source: Literal["built-in", "gguf", "hub", "folder"]
    revision: str | None = None
    packed_bytes: int = 0

    @property
    def gone(self) -> bool:
        """Whether the user's own file or folder that it was made from is no longer there."""
        return self.source in ("gguf", "folder") and not Path(self.name).exists()


def cached() -> list[CachedModel]:
    """Every model that is here and complete.

    pamx's own cache comes first, then the Hugging Face cache, then folders elsewhere whose packed
    weights are kept.
    """
    kept = packed.kept_bytes()
    found = [
        replace(model, packed_bytes=kept.pop(model.path.resolve(), 0))
        for model in (*_converted(), *_from_hub())
    ]
    elsewhere = [
        CachedModel(str(folder), folder, 0, "folder", packed_bytes=size)
        for folder, size in sorted(kept.items())
    ]
    return found + elsewhere


def full_path(name: str) -> str:
    """The path that ``name`` stands for if it is one; itself if it can be none."""
    try:
        return str(Path(name).expanduser().resolve())
    except (OSError, RuntimeError, ValueError):  # no working directory, no such user, a null byte
        return name


def remove(name: str) -> CachedModel:
    """Delete a model and its packed weights from the cache.

    A GGUF file is never touched, nor is a model folder of the user's own.

    Args:
        name: As ``cached`` lists it; for a GGUF also the file name without ``.gguf``; a
            repository may have ``@commit`` (or a branch or tag), and goes whole without.

    Returns:
        What was deleted; the sizes are totals if there was more than one copy.

    Raises:
        ModelError: No such model is cached, the name fits several, or it cannot be deleted.
    """
    local = [model for model in _converted() if name in (model.name, _gguf_name(model))]
    if not local:
        full = full_path(name)
        local = [model for model in _converted() if model.name == full]
    if len({model.name for model in local}) > 1:
        raise ModelError(
            f"{name} fits several cached models: {', '.join(sorted(m.name for m in local))}.",
            "Give the full path of the one to delete.",
        )
    if local:
        freed = sum(_forget(model.path) for model in local)
        for model in local:
            store.delete(model.path)
        size = sum(model.size_bytes for model in local)
        return replace(local[0], size_bytes=size, packed_bytes=freed)
    if (folder := Path(full)) in packed.kept_bytes():
        return CachedModel(full, folder, 0, "folder", packed_bytes=_forget(folder))
    return _remove_from_hub(name)


def remove_packed(found: list[CachedModel]) -> int:
    """Delete the packed weights alone of models that ``cached`` listed; they can be made again.

    Returns:
        Bytes that this freed.

    Raises:
        ModelError: They cannot be deleted, or are of several models.
    """
    if len({model.name for model in found}) > 1:
        raise ModelError(
            f"These are several models: {', '.join(sorted(model.name for model in found))}.",
            "Give the full path of one of them.",
        )
    return sum(_forget(model.path) for model in found)


def _forget(folder: Path) -> int:
    with disk_errors(cache_root()):
        return packed.forget(folder)


def _converted() -> list[CachedModel]:
    return [
        CachedModel(
            marker.name,
            folder,
            sum(marker.files.values()),
            "built-in" if marker.source == "built-in" else "gguf",
        )
        for folder, marker in store.entries()
    ]


def _gguf_name(model: CachedModel) -> str | None:
    return Path(model.name).stem if model.source == "gguf" else None


def _hub_cache() -> HFCacheInfo | None:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except (CacheNotFound, OSError, ValueError):
        return None


def _hub_repos(cache: HFCacheInfo | None) -> list[CachedRepoInfo]:
    repos = cache.repos if cache else frozenset()
    return sorted((r for r in repos if r.repo_type == "model"), key=lambda r: r.repo_id)


def _from_hub() -> list[CachedModel]:
    return [
        CachedModel(
            repo.repo_id,
            revision.snapshot_path,
            revision.size_on_disk,
            "hub",
            revision.commit_hash,
        )
        for repo in _hub_repos(_hub_cache())
        for revision in sorted(repo.revisions, key=lambda r: r.commit_hash)
        if (revision.snapshot_path / "config.json").is_file()
        and any(revision.snapshot_path.glob("model*.safetensors"))
    ]


def _remove_from_hub(name: str) -> CachedModel:
    repo_id, _, wanted = name.partition("@")
    cache = _hub_cache()
    revisions = [
        revision
        for repo in _hub_repos(cache)
        if repo.repo_id == repo_id
        for revision in repo.revisions
        if not wanted or revision.commit_hash.startswith(wanted) or wanted in revision.refs
    ]
    if cache is None or not revisions:
        raise ModelError(f"{name} is not in the cache.", "`pamx models` shows what is.")
    plan = cache.delete_revisions(*(revision.commit_hash for revision in revisions))
    first = revisions[0]
    freed = sum(_forget(revision.snapshot_path) for revision in revisions)
    with disk_errors(first.snapshot_path):
        plan.execute()
    size = plan.expected_freed_size
    return CachedModel(repo_id, first.snapshot_path, size, "hub", first.commit_hash, freed)
