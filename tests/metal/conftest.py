"""Where shaders run: on the software Metal, on a Mac on its GPU, and elsewhere not, saying why.

On a Mac the tests of kernels get programs of the real device under the software Metal's interface;
the tests of the software Metal itself are for Linux.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from metal import softmetal

HERE = Path(__file__).parent
KERNELS = {
    "test_gqa_decode",
    "test_mla",
    "test_nax",
    "test_pages",
    "test_paged_attention",
    "test_prefill",
    "test_split_kv_reduce",
}


def pytest_configure() -> None:
    if sys.platform == "darwin":
        from metal.host import device_program

        softmetal.compile = device_program.compile  # type: ignore[assignment]
        softmetal.check = _no_check


def _no_check(*_: object, **__: object) -> None:
    pytest.skip("sources are checked with clang-19 on Linux")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.parent == HERE]
    reason = softmetal.missing()
    if not mine or reason is None:
        return
    if sys.platform != "darwin" and os.environ.get("PAMX_REQUIRE_METAL_TESTS"):
        raise pytest.UsageError(reason)
    for item in mine:
        if sys.platform != "darwin" or item.path.stem not in KERNELS:
            item.add_marker(pytest.mark.skip(reason=reason))
