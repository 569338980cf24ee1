"""Gives MLX its BLAS in time, whichever module imports it first.

`pamx/__init__.py` imports this module, so it has run before any module of pamx, and it costs
nothing until somebody imports mlx.core.
"""

from __future__ import annotations

import sys
from typing import Any


class _BeforeMlx:
    """Finds no module; it is asked before those that do."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "mlx.core":
            sys.meta_path.remove(self)
            from pamx.native import blas

            blas.install()


sys.meta_path.insert(0, _BeforeMlx())
