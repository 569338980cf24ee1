"""Tests of shaders run where the software Metal does; elsewhere they are skipped, saying why."""

from __future__ import annotations

from pathlib import Path

import pytest

from metal import softmetal

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = softmetal.missing()
    if reason is None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))
