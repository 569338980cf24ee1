"""Checks of what is on disk: pamx's cache, the models, the Hugging Face settings."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pamx.cli.doctor.row import Row
from pamx.cli.sizes import bytes_text

_LOW_DISK = 2 << 30


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


def check_hub() -> Row:
    from huggingface_hub import constants, get_token

    offline, token = constants.is_offline_mode(), get_token() is not None
    value = {
        "hf_home": constants.HF_HOME,
        "endpoint": constants.ENDPOINT,
        "offline": offline,
        "token": token,
    }
    message = (
        f"{constants.ENDPOINT}, {'offline mode' if offline else 'not contacted'}, "
        f"{'with a' if token else 'no'} token, HF_HOME {constants.HF_HOME}."
    )
    return Row("hub", "ok", message, value)


def _folder(name: str, folder: Path, variable: str) -> Row:
    """Whether a cache folder, or what it will be made in, can be written and has room."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    value = {"path": str(folder), "free": free}
    elsewhere = f"or set {variable} to another folder."
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Row(
            name,
            "warn",
            f"{folder} cannot be written: no model can be added.",
            value,
            f"Fix the permissions of {place}, {elsewhere}",
        )
    message = f"{folder}, {bytes_text(free)} free."
    if free < _LOW_DISK:
        return Row(name, "warn", message, value, f"Free some space, {elsewhere}")
    return Row(name, "ok", message, value)
