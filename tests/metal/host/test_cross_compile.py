"""All of native/ compiles for arm64 macOS without a warning and links to the pinned libmlx.

With Apple's SDK replaced by the declarations of include/ and macos/, which test_declarations.py
checks.
"""

from __future__ import annotations

import pytest

from metal.host.macos import cross

pytestmark = pytest.mark.skipif(bool(cross.missing()), reason=cross.missing())


def test_links_strictly_to_libmlx() -> None:
    objects = cross.compile_all([*cross.sources("*.cpp"), *cross.sources("*.mm")])
    library = cross.link(objects).read_bytes()
    for name in (b"_pamx_metal_attention", b"_pamx_paged_attention", b"@rpath/libmlx.dylib"):
        assert name in library


def test_compiles_with_automatic_reference_counting() -> None:
    cross.compile_all(cross.sources("*.mm"), ["-fobjc-arc"])


def test_an_unknown_name_does_not_link() -> None:
    """The strictness that the first test relies on."""
    objects = cross.compile_all(cross.sources("status.cpp") + cross.sources("copy_blocks.cpp"))
    with pytest.raises(RuntimeError, match="undefined symbol"):
        cross.link(objects)
