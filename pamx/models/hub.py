"""Models from the Hugging Face Hub, through huggingface_hub and its own cache.

HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HUB_DISABLE_PROGRESS_BARS work as they do
everywhere; a broken connection is taken up again where it broke.
"""

from __future__ import annotations

import errno
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pamx.errors import ModelError, NotAModelError
from pamx.models.cache_dir import disk_errors
from pamx.models.notice import watched
from pamx.models.source import HubRepo

__all__ = ["cached_hub", "fetch_hub", "fetch_hub_headers"]

# What mlx-lm fetches of a repository: no PyTorch, GGUF or ONNX weights.
_FILES = [
    "*.json",
    "model*.safetensors",
    "*.py",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "*.jsonl",
    "*.jinja",
]


def fetch_hub(repo: HubRepo, progress: bool) -> Path:
    """Make a Hub repository present in the Hugging Face cache.

    What is cached and complete is used if the Hub cannot be reached.

    Returns:
        The snapshot folder.

    Raises:
        ModelError: The repository or revision is missing or closed to this user, the Hub cannot
            be reached, the disk is full, or the repository holds no safetensors.
    """
    from huggingface_hub import snapshot_download

    with _progress_on_a_terminal(progress), _hub_errors(repo):
        folder = Path(snapshot_download(repo.id, revision=repo.revision, allow_patterns=_FILES))
    if not any(folder.glob("model*.safetensors")):
        raise _no_safetensors(repo)
    return folder


def cached_hub(repo: HubRepo) -> Path | None:
    """The snapshot folder of a repository if it is in the cache with weights, whole or not."""
    from huggingface_hub import snapshot_download

    try:
        with _progress_on_a_terminal(False):
            folder = Path(
                snapshot_download(
                    repo.id, revision=repo.revision, allow_patterns=_FILES, local_files_only=True
                )
            )
    except Exception:  # not there, in any of the library's ways to say so
        return None
    return folder if any(folder.glob("model*.safetensors")) else None


def fetch_hub_headers(repo: HubRepo, folder: Path, timeout: float) -> dict[str, dict[str, Any]]:
    """A repository's config.json, put into a folder, and what its weight files begin with.

    Args:
        repo: The repository.
        folder: Where config.json goes.
        timeout: Seconds to wait for an answer.

    Returns:
        The safetensors header of each file, by name: dtype, shape and data_offsets of each tensor.

    Raises:
        ModelError: as `fetch_hub`.
    """
    from huggingface_hub import get_safetensors_metadata, hf_hub_download
    from huggingface_hub.errors import NotASafetensorsRepoError

    with _progress_on_a_terminal(False), _hub_errors(repo):
        _knock(repo, timeout)
        hf_hub_download(
            repo.id, "config.json", revision=repo.revision, local_dir=folder, etag_timeout=timeout
        )
        try:
            found = get_safetensors_metadata(repo.id, revision=repo.revision, timeout=timeout)
        except NotASafetensorsRepoError as error:
            raise _no_safetensors(repo) from error
    return {
        name: {
            tensor: {
                "dtype": info.dtype,
                "shape": list(info.shape),
                "data_offsets": list(info.data_offsets),
            }
            for tensor, info in file.tensors.items()
        }
        for name, file in found.files_metadata.items()
    }


def _knock(repo: HubRepo, timeout: float) -> None:
    """Returns if the Hub answers at all, whatever it says.

    The library asks again and again for more than twenty seconds before it says that nobody is
    there: right for a download, too long for a question.
    """
    from huggingface_hub import get_session, hf_hub_url

    get_session().head(hf_hub_url(repo.id, "config.json", revision=repo.revision), timeout=timeout)


@contextmanager
def _progress_on_a_terminal(progress: bool) -> Iterator[None]:
    """Silence the library's progress bars and warnings unless a person is watching."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    library = logging.getLogger("huggingface_hub")
    shown = watched(progress)
    disabled_before, level = are_progress_bars_disabled(), library.level
    with warnings.catch_warnings():
        # It warns when HF_HUB_DISABLE_PROGRESS_BARS already decides.
        warnings.simplefilter("ignore")
        if not shown:
            disable_progress_bars()
        library.setLevel(logging.ERROR)
        try:
            yield
        finally:
            library.setLevel(level)
            if not disabled_before:
                enable_progress_bars()


@contextmanager
def _hub_errors(repo: HubRepo) -> Iterator[None]:
    """Turn what huggingface_hub raises into one sentence and a hint."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo.id}"
    at = f" at revision {repo.revision}" if repo.revision else ""
    unreachable = ModelError(
        f"{repo.id} is not complete on this machine, and {constants.ENDPOINT} cannot be reached or "
        "the connection broke.",
        "Connect to the network and run this again; files that are whole already are kept.",
    )
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo.id} is gated: its owner asks you to accept a licence first.",
            f"Accept it at {page} and set HF_TOKEN to your token (or run `hf auth login`).",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise NotAModelError(
            f"{repo.id} has no revision {repo.revision}.",
            f"See its branches, tags and commits at {page}/tree/main.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise NotAModelError(
            f"{repo.id} does not exist on {constants.ENDPOINT}, or it is private.",
            "Check the spelling; for a private repository set HF_TOKEN to a token that may read "
            "it (or run `hf auth login`).",
        ) from error
    except errors.HFValidationError as error:
        raise NotAModelError(
            f"{repo.id} is not a valid repository name.", "Name it as org/name."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        if constants.is_offline_mode():
            raise ModelError(
                f"{repo.id}{at} is not complete in the local cache, and offline mode is on.",
                "Unset HF_HUB_OFFLINE and run this once with a network.",
            ) from error
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _refused(repo, error.__cause__.response.status_code) from error
        raise unreachable from error
    except errors.HfHubHTTPError as error:
        raise _refused(repo, error.response.status_code) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM):
            with disk_errors(Path(constants.HF_HUB_CACHE)):
                raise
        raise unreachable from error
    except ModelError:
        raise
    except Exception as error:
        # The HTTP library's errors derive from Exception alone, and which library it is has
        # changed between releases of huggingface_hub.
        if type(error).__module__.partition(".")[0].startswith(("httpx", "httpcore", "requests")):
            raise unreachable from error
        raise ModelError(f"{repo.id} could not be downloaded: {error}.") from error


def _refused(repo: HubRepo, status: int) -> ModelError:
    from huggingface_hub import constants

    hint = "Check your token (HF_TOKEN)." if status in (401, 403) else "Try again later."
    return ModelError(f"{constants.ENDPOINT} did not serve {repo.id}: HTTP {status}.", hint)


def _no_safetensors(repo: HubRepo) -> ModelError:
    """Say what a repository without safetensors has instead, if the Hub can be asked."""
    from huggingface_hub import list_repo_files

    kinds = {".gguf": "GGUF", ".bin": "PyTorch", ".pth": "PyTorch", ".onnx": "ONNX"}
    try:
        names = list_repo_files(repo.id, revision=repo.revision)
    except Exception:  # only makes the message below less precise
        names = []
    found = sorted({kinds[suffix] for name in names if (suffix := Path(name).suffix) in kinds})
    holds = f"only {' and '.join(found)} weights" if found else "no weights"
    hint = (
        "Download one of its .gguf files and name that file."
        if "GGUF" in found
        else "Look for a safetensors version of the model; mlx-community has many."
    )
    return ModelError(f"{repo.id} holds {holds}; pamx needs model*.safetensors.", hint)
