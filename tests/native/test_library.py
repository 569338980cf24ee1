"""Loading the library: in any order, matched to its MLX, and replaceable by plain MLX."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from pamx.native import loader as loading
from pamx.native.loader import NativeError, library
from pamx.native.threads import usable_cpus

ROOT = Path(__file__).parents[2]


def run(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "from pamx.native import library as l; l(); import mlx.core as m; print(m.ones(1).item())",
        "import mlx.core as m; from pamx.native import library as l; l(); print(m.ones(1).item())",
        "import pamx.native._pamx; import mlx.core as m; print(m.ones(1).item())",
    ],
)
def test_loads_before_and_after_mlx(code: str) -> None:
    assert run(code) == "1.0"


def test_says_what_it_was_built_from() -> None:
    native = library()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert native.version == version
    assert native.mlx_compiled == native.mlx_loaded == loading.mlx_version()
    assert len(native.build_hash) == 16


def test_another_mlx_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "mlx_version", lambda: "0.99.0")
    with pytest.raises(NativeError, match=r"compiled for MLX .* mlx.core 0.99.0") as error:
        loading._check_versions(library())
    assert "pip install mlx==" in error.value.hint


def test_another_nanobind_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "NANOBIND_ABI", "_v99_")
    with pytest.raises(NativeError, match="nanobind that pamx does not know"):
        loading._check_bridge(library())


def test_can_be_switched_off() -> None:
    code = (
        "from pamx.attention.backend import choose_backend as c; b = c(); print(b.name, b.reason)"
    )
    assert run(code, PAMX_DISABLE_NATIVE="1").startswith("mlx The native library is switched off")
    assert run(code, PAMX_DISABLE_NATIVE="0").startswith("native-cpu")


def test_thread_count_comes_from_the_environment_or_the_machine() -> None:
    code = "from pamx.native import library; print(library().lib.pamx_num_threads())"
    assert run(code, PAMX_NUM_THREADS="3") == "3"
    assert run(code, PAMX_NUM_THREADS="") == str(usable_cpus())
    wrong = "from pamx.native import library\ntry: library()\nexcept Exception as e: print(e)"
    for text in ("many", "0", "-1", "\u00b2"):
        assert f"PAMX_NUM_THREADS is '{text}'" in run(wrong, PAMX_NUM_THREADS=text)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on address space")
def test_threads_that_the_system_does_not_give_are_done_without() -> None:
    """The stacks of 1,024 threads do not fit; what there is computes the same."""
    code = """
import resource
import mlx.core as mx
from pathlib import Path
from pamx.native import library
from pamx.native.small import rms_norm
lib, x = library().lib, mx.random.normal((512, 1024))
expected = rms_norm(x, None, 1e-5)
mx.eval(expected)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))
assert lib.pamx_set_num_threads(1024) == 0
print(mx.array_equal(rms_norm(x, None, 1e-5), expected).item())
"""
    assert run(code) == "True"


def test_a_wrong_setting_is_said_and_not_ignored() -> None:
    code = "from pamx.attention.backend import choose_backend as c; print(c().name, c().reason)"
    said = run(code, PAMX_CPU_ISA="sse9")
    assert said == "mlx PAMX_CPU_ISA is 'sse9'; there are kernels for avx512, avx2, neon, portable."


def test_a_library_of_another_version_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was built before a function was added."""
    native = library()

    class Lib:
        def __getattr__(self, name: str) -> object:
            if name == "pamx_set_num_threads":
                raise AttributeError(f"cffi library has no function named '{name}'")
            return getattr(native.lib, name)

    stale = SimpleNamespace(ffi=native.ffi, lib=Lib(), __file__="x")
    monkeypatch.setitem(sys.modules, "pamx.native._pamx", stale)
    said = "is of another version of pamx: it has no pamx_set_num_threads"
    with pytest.raises(NativeError, match=said) as error:
        loading._load()
    assert error.value.hint == "Build it again: install pamx again."


def test_a_forked_child_gets_threads_of_its_own() -> None:
    """The parent's workers do not exist in the child; its first call must not wait for them."""
    code = """
import os, sys
from pamx.native import library
native = library()
lib = native.lib
import numpy as np, mlx.core as mx
from pamx.attention import selftest
assert selftest.run("native-cpu").passed
pid = os.fork()
if pid == 0:
    # MLX's own stream threads are gone too, so the child asks for the pool alone.
    ok = lib.pamx_set_num_threads(3) == 0 and lib.pamx_num_threads() == 3
    os._exit(0 if ok else 1)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), selftest.run("native-cpu").passed)
"""
    assert run(code) == "0 True"
