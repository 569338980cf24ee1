"""All of native/ compiles for arm64 macOS without a warning and links to the pinned libmlx.

With Apple's SDK replaced by the declarations of include/ and macos/, which test_declarations.py
checks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from metal.host import library
from metal.host.macos import cross


@pytest.fixture(autouse=True)
def _tools() -> None:
    library.need(cross.missing())


def check_links(files: list[Path]) -> None:
    library = cross.link(cross.compile_all(files)).read_bytes()
    for name in (b"_pamx_metal_attention", b"_pamx_paged_attention", b"@rpath/libmlx.dylib"):
        assert name in library


def test_attention_links_strictly_to_libmlx() -> None:
    check_links(cross.attention_sources())


@pytest.mark.metal_all
def test_everything_links_strictly_to_libmlx() -> None:
    check_links([*cross.sources("*.cpp"), *cross.sources("*.mm")])


def test_compiles_with_automatic_reference_counting() -> None:
    cross.compile_all(cross.sources("*.mm"), ["-fobjc-arc"])


def test_an_unknown_name_does_not_link() -> None:
    """The strictness that the first test relies on."""
    objects = cross.compile_all(cross.sources("status.cpp") + cross.sources("copy_blocks.cpp"))
    with pytest.raises(RuntimeError, match="undefined symbol"):
        cross.link(objects)
