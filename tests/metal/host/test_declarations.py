"""include/Metal/Metal.h says what Apple's headers say, so that what compiles here compiles there.

The sources of native/metal compile against that header alone, so its selectors are all that they
use.
"""

from __future__ import annotations

import pytest

from metal.host import library
from metal.host.macos import cross, wheels
from metal.host.macos.declarations import (
    declared_methods,
    declared_values,
    metal_cpp_methods,
    metal_cpp_values,
)


@pytest.fixture(autouse=True)
def _tools() -> None:
    library.need(cross.missing())


HEADER = cross.HOST / "include" / "Metal" / "Metal.h"


def test_methods_are_metals() -> None:
    known = metal_cpp_methods(wheels.mlx() / "include" / "metal_cpp")
    declared = declared_methods(HEADER)
    assert len(declared) >= 37
    assert [method for method in declared if method not in known] == []


def test_enum_values_are_metals() -> None:
    known = metal_cpp_values(wheels.mlx() / "include" / "metal_cpp")
    declared = declared_values(HEADER)
    assert len(declared) >= 15
    assert {name: known.get(name) for name in declared} == declared
