"""Checks of what is on disk: pamx's cache, the models, the Hugging Face settings."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from pamx.cli.doctor.row import Row
from pamx.sizes import bytes_text

_LOW_DISK = 2 << 30
_PATIENCE = 2.0  # seconds that the Hub has to answer


def check_cache() -> Row:
    from pamx.models.cache_dir import cache_root

    return _folder("cache", cache_root(), "PAMX_HOME")


def check_hub_cache() -> Row:
    from huggingface_hub import constants

    return _folder("hub-cache", Path(constants.HF_HUB_CACHE), "HF_HOME")


def check_models() -> Row:
    from pamx.models import cached

    found = cached()
    size = sum(model.size_bytes for model in found)
    value = {"count": len(found), "size": size}
    noun = "model" if len(found) == 1 else "models"
    return Row("models", "ok", f"{len(found)} {noun} here, {bytes_text(size)}.", value)


def check_default_model() -> Row:
    from pamx.models import DEFAULT_MODEL, cached

    for model in cached():
        if model.name == DEFAULT_MODEL:
            return Row("default-model", "ok", f"{model.name}, {model.path}.", str(model.path))
    return Row(
        "default-model",
        "skip",
        f"{DEFAULT_MODEL} is not here yet; its first use downloads it.",
        fix="Run `pamx pull` to download it now.",
    )


def check_hub(*, offline: bool = False) -> Row:
    """The Hub's settings, and whether it answers.

    Args:
        offline: Do not ask it.
    """
    from huggingface_hub import constants, get_token

    switched_off, token = constants.is_offline_mode(), get_token() is not None
    value: dict[str, Any] = {
        "hf_home": constants.HF_HOME,
        "endpoint": constants.ENDPOINT,
        "offline": switched_off,
        "token": token,
        "reachable": None,
        "milliseconds": None,
    }
    about = f"{'with a' if token else 'no'} token, HF_HOME {constants.HF_HOME}"
    if offline or switched_off:
        why = "HF_HUB_OFFLINE is set" if switched_off else "offline, as asked"
        return Row("hub", "skip", f"{constants.ENDPOINT}, not contacted: {why}; {about}.", value)
    start = time.perf_counter()
    try:
        _ask(constants.ENDPOINT)
    except Exception as error:  # the library's, the system's, or a proxy's
        cause = getattr(error, "reason", error)
        reason = str(getattr(cause, "strerror", None) or cause or type(error).__name__)
        value["reachable"] = False
        return Row(
            "hub",
            "warn",
            f"{constants.ENDPOINT} cannot be reached: {reason.rstrip('.')}; {about}.",
            value,
            "Models that are here work without it. Check the network, HF_ENDPOINT and proxies.",
        )
    value |= {"reachable": True, "milliseconds": (time.perf_counter() - start) * 1e3}
    message = f"{constants.ENDPOINT} answers in {value['milliseconds']:.0f} ms; {about}."
    return Row("hub", "ok", message, value)


def _ask(endpoint: str) -> None:
    """Returns if a server answers, whatever it says."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_PATIENCE).close()
    except urllib.error.HTTPError as error:
        error.close()


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # a name too long, a folder that may not be looked into
        return False


def _against_writing(folder: Path, place: Path) -> str:
    """Why `folder` cannot be made and written in `place`, which is there; "" if it can."""
    if not place.is_dir():
        return f"{place} is not a folder"
    try:
        if place != folder:
            (place / folder.relative_to(place).parts[0]).lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        return error.strerror or str(error)
    try:
        with tempfile.TemporaryFile(dir=place):  # has no name where the system can do without
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _folder(name: str, folder: Path, variable: str) -> Row:
    """Whether a cache folder, or what it will be made in, can be written and has room."""
    place = folder
    while not _exists(place) and place != place.parent:
        place = place.parent
    disk = shutil.disk_usage(place)
    free = disk.free
    value = {"path": str(folder), "free": free, "total": disk.total}
    elsewhere = f"or set {variable} to another folder."
    if why := _against_writing(folder, place):
        what = f"{variable} is {folder}, which" if os.environ.get(variable) else str(folder)
        return Row(
            name,
            "warn",
            f"{what} cannot be written ({why}): no model can be added.",
            value,
            f"Make {place} a folder that can be written, {elsewhere}",
        )
    message = f"{folder}, {bytes_text(free)} free."
    if free < _LOW_DISK:
        return Row(name, "warn", message, value, f"Free some space, {elsewhere}")
    return Row(name, "ok", message, value)
