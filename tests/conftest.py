"""Fixtures that tests of every part share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pamx import models

# A test run that was started in the background may have been told to ignore Ctrl-C, and the
# commands that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The folder of the built-in model, fetched into the user's own cache the first time."""
    return models.fetch()
