"""Fixtures of the model tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def pamx_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty pamx cache of the test's own."""
    home = tmp_path / "pamx-home"
    monkeypatch.setenv("PAMX_HOME", str(home))
    return home
