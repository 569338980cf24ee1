"""Importing mlx-lm without its side effects on the process. Import this module before mlx-lm.

mlx-lm lowers the limit of open files when it is imported, and fails where the hard limit is
lower than it wishes. transformers, which it imports, prints advice about libraries that are not
needed here, and reads its 1,700 source files twice to learn which names they define.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_LISTS_NAMES = "transformers.utils.import_utils"


def _import() -> None:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Its warning about a text that is longer than the context comes beside our own error.
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *_: None
    finder = _ReadOnce()
    sys.meta_path.insert(0, finder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mlx_lm.utils  # noqa: F401
    finally:
        sys.meta_path.remove(finder)
        resource.setrlimit = set_limit


class _ReadOnce(MetaPathFinder):
    """Finds the module that lists transformers' names as usual, and has it keep the list."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _LISTS_NAMES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        read = getattr(module, "define_import_structure", None)
        if callable(read):
            vars(module)["define_import_structure"] = _kept(read)


def _kept(read: Any) -> Any:
    """`read`, which is asked for one folder by several names and with several prefixes."""
    plain = functools.cache(read)

    def define_import_structure(module_path: str, prefix: str | None = None) -> Any:
        path = Path(module_path)
        names = plain(str(path.parent if path.is_file() else path))
        if prefix is None:
            return names
        return {
            needs: {f"{prefix}.{module}": defined for module, defined in modules.items()}
            for needs, modules in names.items()
        }

    return define_import_structure


_import()
