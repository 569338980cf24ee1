"""Tests of shaders run where the software Metal does; elsewhere they are skipped, saying why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metal import softmetal

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.parent == HERE]
    reason = softmetal.missing()
    if not mine or reason is None:
        return
    if os.environ.get("PAMX_REQUIRE_METAL_TESTS"):
        raise pytest.UsageError(reason)
    for item in mine:
        item.add_marker(pytest.mark.skip(reason=reason))
