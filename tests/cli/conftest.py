"""Running pamx as a user does: in a process of its own, with a cache folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pamx

PAMX = [sys.executable, "-m", "pamx.cli"]
Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]


@pytest.fixture(scope="session")
def home(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PAMX_HOME that holds the default model (by a link) and nothing else."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "models").mkdir()
    (folder / "models" / default_model_path.name).symlink_to(default_model_path)
    return folder


@pytest.fixture(scope="session")
def environment(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a plain user: no settings, an empty and offline Hugging Face cache."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PAMX_", "HF_", "NO_COLOR", "FORCE_COLOR"))
    }
    return kept | {
        "PAMX_HOME": str(home),
        "HF_HOME": str(tmp_path_factory.mktemp("hf")),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(pamx.__file__).parents[1]),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Run:
    """Runs `pamx` with these arguments; `input` is its standard input, `env` is added."""

    def call(*args: str, input: str | bytes = b"", env: dict[str, str] | None = None) -> Result:  # noqa: A002
        done = subprocess.run(
            [*PAMX, *args],
            input=input.encode() if isinstance(input, str) else input,
            capture_output=True,
            timeout=120,
            check=False,
            env=environment | (env or {}),
        )
        return Result(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return call
