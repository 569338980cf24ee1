"""Where the command line keeps what belongs to its user."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path


def data_folder() -> Path:
    """The pamx data folder: `PAMX_HOME` if set, else the platform's; it may not exist yet."""
    home = os.environ.get("PAMX_HOME")
    return Path(home).absolute() if home else user_data_path("pamx", appauthor=False)
