"""Each test of this folder runs with every library that this machine can have."""

from __future__ import annotations

import pytest

from metal.host import library


@pytest.fixture(params=library.names())
def metal(request: pytest.FixtureRequest) -> library.Metal:
    library.need(library.missing())
    return library.load(request.param)
