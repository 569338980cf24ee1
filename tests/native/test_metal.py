"""Metal in the library and the package: what is there on macOS, and what says so elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

from pamx.attention import backend as backends
from pamx.attention import selftest
from pamx.errors import NativeError
from pamx.native import metal, shaders
from pamx.native.loader import check, library

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "native"))
from building import metal as building  # noqa: E402

sys.path.remove(str(ROOT / "native"))  # its mlx folder is no package

elsewhere = pytest.mark.skipif(sys.platform == "darwin", reason="on a Mac the library has Metal")


@elsewhere
def test_without_metal_every_call_says_so() -> None:
    native = library()
    assert native.lib.pamx_metal_built() == 0
    calls = [
        native.lib.pamx_metal_configure(b"/somewhere", native.ffi.NULL),
        native.lib.pamx_metal_attention(*[native.ffi.NULL] * 4),
        native.lib.pamx_metal_run(native.ffi.NULL, native.ffi.NULL, 0, native.ffi.NULL),
    ]
    assert calls == [native.lib.PAMX_UNSUPPORTED] * 3
    with pytest.raises(NativeError, match="this build of pamx has no Metal; Metal is macOS's"):
        check(native, calls[0])
    with pytest.raises(NativeError, match="built without Metal kernels"):
        metal.metal_gpu()


def on_gpu(monkeypatch: pytest.MonkeyPatch, metal_available: bool) -> None:
    gpu = SimpleNamespace(type=mx.DeviceType.gpu)
    monkeypatch.setattr(backends.mx, "default_device", lambda: gpu)
    monkeypatch.setattr(backends.mx.metal, "is_available", lambda: metal_available)
    backends._metal_verdict.cache_clear()


@elsewhere
def test_a_gpu_without_kernels_gets_the_reference_and_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_gpu(monkeypatch, True)
    chosen = backends.choose_backend()
    assert chosen.name == "mlx"
    assert chosen.reason == "The native library was built without Metal kernels."
    on_gpu(monkeypatch, False)
    assert "for CPUs and Apple's GPUs" in backends.choose_backend().reason


@pytest.mark.parametrize(
    ("outcome", "name", "reason"),
    [
        (selftest.SelfTestResult(1e-7, 1e-5, 1.0), "native-metal", "serve MLX on the Apple M9"),
        (selftest.SelfTestResult(0.5, 1e-5, 1.0), "mlx", "compute attention wrong here: 5.0e-01"),
        (selftest.SelfTestResult(float("nan"), 1e-5, 1.0), "mlx", "compute attention wrong here"),
        (RuntimeError("no pipeline"), "mlx", "The Metal kernels fail here: no pipeline."),
        (NativeError("They do not compile."), "mlx", "They do not compile."),
    ],
)
def test_metal_kernels_are_tried_before_they_are_trusted(
    outcome: object, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(kernel: str) -> object:
        assert kernel == "native-metal"
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    on_gpu(monkeypatch, True)
    monkeypatch.setattr(backends, "metal_gpu", lambda: SimpleNamespace(name="Apple M9"))
    monkeypatch.setattr(selftest, "run", run)
    chosen = backends.choose_backend()
    assert chosen.name == name
    assert reason in chosen.reason
    backends._metal_verdict.cache_clear()


def test_the_package_carries_the_shaders(tmp_path: Path) -> None:
    """Built as a wheel is; an installation from the source tree reads the tree's."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    installed = {p.name for p in (tmp_path / "pamx" / "shaders").iterdir()}
    folder = shaders.folder()
    assert folder == ROOT / "shaders"
    assert installed == {p.name for p in folder.iterdir() if p.suffix in (".metal", ".h")}
    assert "paged_attention.metal" in installed


def test_a_metallib_is_of_these_sources_or_is_not_used(tmp_path: Path) -> None:
    assert building.metallib_name() == shaders.metallib_name(ROOT / "shaders")
    for name in ("a.metal", "b.h"):
        (tmp_path / name).write_text("one")
    before = shaders.metallib_name(tmp_path)
    (tmp_path / "b.h").write_text("two")
    assert shaders.metallib_name(tmp_path) != before
    assert shaders.metallib(tmp_path) is None


def test_the_usual_specialisations_are_listed_once() -> None:
    found = building.specialisations(["c++"])
    lines = [line for source in found.values() for line in source]
    assert len(lines) == len(set(lines)) > 50
    assert {"paged_attention.metal", "gqa_decode.metal", "split_kv_reduce.metal"} <= set(found)
    assert any("half" in line and "128" in line for line in found["paged_attention.metal"])
    assert (ROOT / "shaders" / "gather_blocks.metal").exists()
    assert found["gather_blocks.metal"] == []


def test_without_xcode_shaders_are_left_for_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = building.compile_metallib(tmp_path / "x.metallib", ["c++"])
    assert "xcrun metal is not there" in said
    assert list(tmp_path.iterdir()) == []


def test_with_xcode_they_are_compiled_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for xcrun notes how it is called, and lacks Metal 4."""
    log, xcrun = tmp_path / "log", tmp_path / "bin" / "xcrun"
    xcrun.parent.mkdir()
    xcrun.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in *metal4.0*) exit 1;; esac\n'
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done; exit 0\n'
    )
    xcrun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{xcrun.parent}:/usr/bin:/bin")
    lines = {"a.metal": ["template line;"], "prefill_nax.metal": ["another;"]}
    monkeypatch.setattr(building, "specialisations", lambda _: lines)
    target = tmp_path / "lib" / "pamx-1.metallib"
    target.parent.mkdir()
    (target.parent / "pamx-0.metallib").write_text("of older sources")
    said = building.compile_metallib(target, ["c++"])
    assert said == "shaders compiled into pamx-1.metallib: 1; at first use: 1"
    assert [p.name for p in target.parent.iterdir()] == ["pamx-1.metallib"]
    compiled = next(c for c in log.read_text().splitlines() if "-c" in c and "a.metal" in c)
    assert "-std=metal3.1 -fno-fast-math -mmacosx-version-min=14.0" in compiled
