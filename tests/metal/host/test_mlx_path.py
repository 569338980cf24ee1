"""Operations on MLX arrays take the same way on a GPU: mlx_path_test.mm, a test of it at a time."""

from __future__ import annotations

import ctypes
import sys
from itertools import count

import mlx.core  # noqa: F401  # the libmlx that the test's library finds loaded
import pytest

from metal.host import library


@pytest.mark.skipif(sys.platform == "darwin", reason="on a Mac tests/native takes this way")
def test_calls_on_mlx_arrays_equal_stand_alone_ones() -> None:
    library.need(library.missing())
    library.load("mrc")  # the software device can compile from here on
    path = library.build.build_mlx_path()
    test = ctypes.CDLL(str(path)).mlx_path_test
    test.restype = ctypes.c_char_p
    configure = ctypes.CDLL(str(path)).pamx_metal_configure
    assert configure(str(library.SHADERS).encode(), None) == 0
    for number in count():
        if (wrong := test(number)) == b"":
            assert number > 0
            return
        assert wrong is None, wrong.decode()
