"""Importing mlx-lm without its side effects on the process. Import this module before mlx-lm.

mlx-lm lowers the limit of open files when it is imported, and fails where the hard limit is
lower than it wishes; transformers, which it imports, prints advice about libraries that are not
needed here.
"""

from __future__ import annotations

import logging
import os
import resource
import warnings


def _import() -> None:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Its warning about a text that is longer than the context comes beside our own error.
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mlx_lm.utils  # noqa: F401
    finally:
        resource.setrlimit = set_limit


_import()
