"""Each test of this folder runs with every library that this machine can have."""

from __future__ import annotations

import pytest

from metal.host import library


@pytest.fixture(params=library.names())
def metal(request: pytest.FixtureRequest) -> library.Metal:
    if reason := library.missing():
        pytest.skip(reason)
    return library.load(request.param)
