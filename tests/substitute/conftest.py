"""Backends to run each test on."""

from __future__ import annotations

import pytest

from pamx.attention.backend import Backend, backend_named


@pytest.fixture(params=["native-cpu", "mlx"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_named(request.param)
