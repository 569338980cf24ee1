"""MLX's dense products go to OpenBLAS where pamx could arrange it, and are right either way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from pamx.native import library
from pamx.native.blas import Blas, install

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX has Accelerate on macOS")

STATE = """
import json
from pamx.native.blas import install
blas = install()
import mlx.core as mx
mx.set_default_device(mx.cpu)
mx.eval(mx.ones((4, 8)) @ mx.ones((8, 4)))
print(json.dumps([blas.library is not None, blas.reason, blas.calls()]))
"""


def state(before: str = "", after: str = "", **env: str) -> tuple[bool, str, int]:
    """Whether a fresh process has it, why, and the products that came to it."""
    done = subprocess.run(
        [sys.executable, "-c", before + STATE + after],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    active, reason, calls = json.loads(done.stdout.splitlines()[0])
    return active, reason, calls


@pytest.fixture
def blas() -> Iterator[Blas]:
    found = install()
    assert found.library is not None, found.reason
    with mx.stream(mx.cpu):
        yield found


@pytest.mark.parametrize("dtype", [mx.float32, mx.complex64])
def test_products_come_to_us(blas: Blas, dtype: mx.Dtype) -> None:
    before = blas.calls()
    x = mx.ones((3, 5), dtype)
    assert (x @ x.T).tolist() == [[5.0] * 3] * 3
    assert blas.calls() == before + 1


@pytest.mark.parametrize("m", [1, 2, 7, 255, 256, 257, 600])
@pytest.mark.parametrize("n", [1, 3, 256, 513, 1100])
@pytest.mark.parametrize("k", [1, 64, 301])
def test_equals_float64_in_every_layout(blas: Blas, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m * n * k)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    c = rng.standard_normal((m, n))
    want = a @ b
    lefts = [mx.array(a.astype(np.float32)), mx.array(np.ascontiguousarray(a.T, np.float32)).T]
    rights = [mx.array(b.astype(np.float32)), mx.array(np.ascontiguousarray(b.T, np.float32)).T]
    # A slice of something wider: the leading dimension is not the length of a row.
    wide = np.zeros((m, k + 3), np.float32)
    wide[:, :k] = a
    lefts.append(mx.array(wide)[:, :k])
    before = blas.calls()
    for left in lefts:
        for right in rights:
            np.testing.assert_allclose(np.array(left @ right), want, rtol=0, atol=1e-5 * k**0.5)
            sum_ = mx.addmm(mx.array(c.astype(np.float32)), left, right, alpha=0.5, beta=-2.0)
            np.testing.assert_allclose(np.array(sum_), 0.5 * want - 2 * c, atol=2e-5 * k**0.5)
    assert blas.calls() > before


def test_float64(blas: Blas) -> None:
    a = np.random.default_rng(1).standard_normal((300, 400))
    x = mx.array(a, dtype=mx.float64)
    before = blas.calls()
    np.testing.assert_allclose(np.array(x @ x.T), a @ a.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(np.array(x[:1] @ x.T), a[:1] @ a.T, rtol=0, atol=1e-11)
    assert blas.calls() == before + 2


def test_one_row_does_not_read_what_the_memory_held(blas: Blas) -> None:
    """beta is 0, so a NaN that lies where the result goes must not reach it."""
    import ctypes

    a, b = np.ones(64, np.float32), np.ones((64, 300), np.float32)
    pointer, real, integer = ctypes.c_void_p, ctypes.c_float, ctypes.c_int
    assert blas.library is not None
    gemm = blas.library.cblas_sgemm
    gemm.restype = None
    gemm.argtypes = [integer] * 6 + [real, pointer, integer, pointer, integer, real, pointer]
    gemm.argtypes += [integer]
    row, matrix = a.ctypes.data, b.ctypes.data
    out = np.full(300, np.nan, np.float32)
    gemm(101, 111, 111, 1, 300, 64, 1.0, row, 64, matrix, 300, 0.0, out.ctypes.data, 300)
    assert (out == 64).all()
    out[:] = np.nan
    gemm(101, 112, 111, 300, 1, 64, 1.0, matrix, 300, row, 1, 0.0, out.ctypes.data, 1)
    assert (out == 64).all()


def test_bits_do_not_depend_on_the_threads(blas: Blas) -> None:
    lib = library().lib
    threads = lib.pamx_num_threads()
    assert blas.threads() == threads
    x, w = mx.random.normal((600, 300)), mx.random.normal((700, 300))
    want = np.array(x @ w.T)
    try:
        for count in (1, 7):
            assert lib.pamx_set_num_threads(count) == 0
            assert blas.threads() == count
            np.testing.assert_array_equal(np.array(x @ w.T), want)
    finally:
        lib.pamx_set_num_threads(threads)


def test_it_brings_no_threads_of_its_own() -> None:
    """OpenBLAS's pool would spin beside ours, follow another count and be lost at fork."""
    code = "import os; print(len(os.listdir('/proc/self/task')))"
    plain, with_blas = (
        subprocess.run(
            [sys.executable, "-c", STATE + code],
            env={**os.environ, "PAMX_BLAS": on},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[1]
        for on in ("0", "1")
    )
    assert with_blas == plain


def test_a_forked_child_multiplies() -> None:
    """In the child MLX's threads are gone, so it calls the function itself."""
    code = """
import json
import os
from pamx.native import library
library()
x = mx.random.normal((600, 600))
mx.eval(x @ x)
pid = os.fork()
if pid == 0:
    import ctypes
    import numpy as np
    a = np.ones((600, 600), np.float32)
    out = np.empty_like(a)
    at = lambda array: ctypes.c_void_p(array.ctypes.data)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    blas.library.cblas_sgemm(
        101, 111, 111, 600, 600, 600, one, at(a), 600, at(a), 600, zero, at(out), 600
    )
    os._exit(0 if (out == 600).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    assert state(after=code)[0]


@pytest.mark.parametrize(
    "module", ["pamx", "pamx.kv.pool", "pamx.native.ops", "pamx.cli.doctor.compute"]
)
def test_whatever_module_of_pamx_comes_first(module: str) -> None:
    active, reason, calls = state(before=f"import {module}, mlx.core\n")
    assert active, reason
    assert calls == 1


@pytest.mark.parametrize(
    ("before", "env", "said"),
    [
        ("", {"PAMX_BLAS": "0"}, "OpenBLAS is switched off by PAMX_BLAS."),
        ("", {"PAMX_BLAS": "Off"}, "OpenBLAS is switched off by PAMX_BLAS."),
        ("import mlx.core\n", {}, "MLX was loaded before pamx."),
        (
            "import sys; sys.modules['scipy_openblas32'] = None\n"
            "import importlib.util as u; real = u.find_spec\n"
            "u.find_spec = lambda n, *a: None if n == 'scipy_openblas32' else real(n, *a)\n",
            {},
            "The package scipy-openblas32 is not installed.",
        ),
        (
            "import importlib.util as u; real = u.find_spec\n"
            "u.find_spec = lambda n, *a: None if n == 'pamx.native._blas' else real(n, *a)\n",
            {},
            "This installation of pamx has no native library.",
        ),
    ],
)
def test_without_it_mlx_multiplies_and_the_reason_is_said(
    before: str, env: dict[str, str], said: str
) -> None:
    assert state(before, **env) == (False, said, 0)


def test_a_damaged_openblas_is_said(tmp_path: Path) -> None:
    (tmp_path / "scipy_openblas32" / "lib").mkdir(parents=True)
    (tmp_path / "scipy_openblas32" / "__init__.py").touch()
    (tmp_path / "scipy_openblas32" / "lib" / "libscipy_openblas.so").write_bytes(b"\x7fELF")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    active, reason, calls = state(PYTHONPATH=path)
    assert not active
    assert calls == 0
    assert reason.startswith("OpenBLAS does not load: ")
