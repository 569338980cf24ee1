"""Fixtures that tests of every part share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pamx import models


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The folder of the built-in model, fetched into the user's own cache the first time."""
    return models.fetch()
