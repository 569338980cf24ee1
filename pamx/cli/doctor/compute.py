"""Checks that run MLX and the native library; a broken one may kill the process they run in."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pamx.cli.doctor.machine import output_of
from pamx.cli.doctor.metal import check_metal
from pamx.cli.doctor.row import Row
from pamx.cli.doctor.software import installed_version
from pamx.errors import NativeError
from pamx.sizes import bytes_text

if TYPE_CHECKING:
    from pamx.native.selftest import KernelTest

_REINSTALL = "Install pamx again with pip; it brings the MLX that it was built for."


def check_mlx() -> Row:
    try:
        import mlx.core as mx

        from pamx.native.loader import mlx_version
    except ImportError as error:
        return Row("mlx", "fail", f"It does not load: {error}.", fix=_REINSTALL)
    device = str(mx.default_device().type).rpartition(".")[2]
    found = mlx_version()
    value = {"version": found, "device": device}
    return Row("mlx", "ok", f"{found}, runs on the {device.upper()}.", value)


def check_gpu() -> Row:
    import mlx.core as mx

    metal, cuda = mx.metal.is_available(), mx.cuda.is_available()
    if not metal and not cuda:
        return Row("gpu", "skip", "There is none that this MLX can use.")
    facts: dict[str, Any] = dict(mx.device_info(mx.gpu))
    facts["backend"] = "metal" if metal else "cuda"
    if sys.platform == "darwin":
        facts["cores"] = gpu_core_count(output_of("ioreg", "-rc", "AGXAccelerator", "-d", "1"))
    message = str(facts.get("device_name", "unnamed"))
    if facts.get("cores"):
        message += f", {facts['cores']} cores"
    if "max_recommended_working_set_size" in facts:
        message += f", working set {bytes_text(facts['max_recommended_working_set_size'])}"
    return Row("gpu", "ok", f"{message}, through {facts['backend'].upper()}.", facts)


def gpu_core_count(ioreg: str) -> int | None:
    """The GPU's cores in what `ioreg -rc AGXAccelerator` prints, or None."""
    found = re.search(r'"gpu-core-count"\s*=\s*(\d+)', ioreg)
    return int(found[1]) if found else None


def check_blas() -> Row:
    """Whether a dense product of MLX really reaches the library that pamx put in place."""
    import mlx.core as mx

    from pamx.native import library
    from pamx.native.blas import install

    if sys.platform != "linux":
        return Row("blas", "skip", install().reason)
    blas = install()
    before = blas.calls()
    ones = mx.ones((2, 2), mx.float32)
    mx.eval(mx.matmul(ones, ones, stream=mx.cpu))
    active = blas.calls() > before
    value = {"library": "openblas" if active else "mlx", "version": blas.version}
    if active:
        with contextlib.suppress(NativeError):
            library()  # its worker pool serves the products from now on
        threads = blas.threads()
        noun = "thread" if threads == 1 else "threads"
        name = " ".join(blas.version.split()[:2])  # what follows is how it was built
        message = f"{blas.reason[:-1]}, on {threads} {noun}: {name}."
        return Row("blas", "ok", message, value | {"threads": threads})
    reason = blas.reason if blas.library is None else "MLX does not call OpenBLAS."
    message = f"MLX multiplies dense float32 matrices with its own BLAS, slower. {reason}"
    return Row("blas", "warn", message, value, blas.hint)


def check_native() -> Row:
    from pamx.native import library

    try:
        native = library()
    except NativeError as error:
        return Row("native-library", "warn", error.message, {"active": False}, error.hint)
    threads = native.lib.pamx_num_threads()
    value = {
        "active": True,
        "path": str(native.path),
        "version": native.version,
        "build_hash": native.build_hash,
        "mlx_compiled": native.mlx_compiled,
        "mlx_loaded": native.mlx_loaded,
        "device": "cpu",
        "isa": native.cpu_isa,
        "threads": threads,
    }
    message = (
        f"Loaded: CPU kernels, {native.cpu_isa}, {threads} threads, for MLX "
        f"{native.mlx_compiled}, build {native.build_hash}, {native.path}."
    )
    installed = installed_version("pamx")
    if installed not in (None, native.version):
        return Row(
            "native-library",
            "warn",
            f"It is of pamx {native.version}, not {installed}. {message}",
            value,
            "Build it again: install pamx again.",
        )
    return Row("native-library", "ok", message, value)


def check_abi() -> Row:
    """Whether the library, libmlx and mlx.core are of one MLX: its C++ interface is not stable."""
    from pamx.native import library
    from pamx.native.loader import mlx_version

    try:
        native = library()
    except NativeError as error:
        return Row("abi", "skip", f"No native library: {error.message}", {"mlx": mlx_version()})
    value = {"compiled": native.mlx_compiled, "libmlx": native.mlx_loaded, "mlx": mlx_version()}
    message = f"Native library, libmlx and mlx.core are all of MLX {native.mlx_loaded}."
    return Row("abi", "ok", message, value)


def check_attention() -> Row:
    from pamx.attention.backend import choose_backend

    backend = choose_backend()
    value = {"kernel": backend.name, "reason": backend.reason}
    if backend.name == "mlx":
        message = f"Plain MLX operations serve it, slower. {backend.reason}"
        return Row("attention", "warn", message, value)
    return Row("attention", "ok", backend.reason, value)


def _native_hint() -> str:
    from pamx.native import library

    try:
        library()
    except NativeError as error:
        return error.hint
    return ""


def check_compute() -> Row:
    import mlx.core as mx

    from pamx.attention.backend import choose_backend

    backend = choose_backend()
    if backend.name != "native-cpu":
        value = {"mode": "mlx", "reason": backend.reason}
        message = f"MLX computes what is not attention. {backend.reason}"
        if mx.default_device().type != mx.DeviceType.cpu:
            return Row("compute", "ok", message, value)
        return Row("compute", "warn", f"Slow: {message}", value, _native_hint())
    message = (
        "Models run in mode fast: native kernels, layers fused where they are understood. "
        "`pamx generate --verbose` says what each layer of a model got; --compute chooses a mode."
    )
    return Row("compute", "ok", message, {"mode": "fast", "reason": backend.reason})


def check_self_test_mlx() -> Row:
    return _self_test("self-test-mlx", "mlx")


def check_self_test_attention() -> Row:
    from pamx.attention.backend import choose_backend

    kernel = choose_backend().name
    if kernel == "mlx":
        return Row("self-test-attention", "skip", _NOT_IN_USE)
    return _self_test("self-test-attention", kernel)


def check_self_test_linear() -> Row:
    return _kernel_test("self-test-linear", "A 4-bit matrix product", _linear_fast)


def check_self_test_linear_exact() -> Row:
    return _kernel_test("self-test-linear-exact", "A 4-bit matrix product", _linear_exact)


def check_self_test_small() -> Row:
    from pamx.native import selftest

    return _kernel_test("self-test-small", "The worst of norms, rope and gate", selftest.run_small)


def check_self_test_blocks() -> Row:
    return _kernel_test("self-test-blocks", "The worse fused block", _blocks_fast)


def check_self_test_blocks_exact() -> Row:
    return _kernel_test("self-test-blocks-exact", "The worse fused block", _blocks_exact)


def check_shaders() -> Row:
    from pamx.native import shaders

    if sys.platform != "darwin":
        return Row("shaders", "skip", "Metal shaders are for Macs.")
    place = shaders.folder()
    if place is None:
        message = "This installation has no shaders: MLX's own operations serve the GPU."
        return Row("shaders", "warn", message, None, "Install pamx again with pip.")
    compiled = shaders.metallib(place)
    value = {"folder": str(place), "compiled": None if compiled is None else str(compiled)}
    if compiled is None:
        return Row("shaders", "ok", f"{place}; the system compiles them at first use.", value)
    return Row("shaders", "ok", f"Compiled at installation: {compiled}.", value)


_NOT_IN_USE = "The native kernels are not in use."
_WITHOUT = "Set PAMX_DISABLE_NATIVE=1 to do without the native library, and report this."


def _linear_fast() -> KernelTest:
    from pamx.native import selftest

    return selftest.run_linear("fast")


def _linear_exact() -> KernelTest:
    from pamx.native import selftest

    return selftest.run_linear("exact")


def _blocks_fast() -> KernelTest:
    from pamx.native import selftest

    return selftest.run_blocks("fast")


def _blocks_exact() -> KernelTest:
    from pamx.native import selftest

    return selftest.run_blocks("exact")


def _kernel_test(name: str, what: str, run: Callable[[], KernelTest]) -> Row:
    """A family of CPU kernels on random data against float64."""
    from pamx.attention.backend import choose_backend

    if choose_backend().name == "mlx":
        return Row(name, "skip", _NOT_IN_USE)
    found = run()
    return _tested(name, what, found.error, found.tolerance, found.milliseconds, found.passed)


def _self_test(name: str, kernel: str) -> Row:
    """One attention layer of random data against float64."""
    from pamx.attention import selftest

    found = selftest.run(kernel)
    row = _tested(
        name, "Attention", found.max_error, found.tolerance, found.milliseconds, found.passed
    )
    fix = _REINSTALL if row.fix and kernel == "mlx" else row.fix
    return replace(row, value={"kernel": kernel, **row.value}, fix=fix)


def _tested(
    name: str, what: str, error: float, tolerance: float, milliseconds: float, passed: bool
) -> Row:
    value = {
        "max_error": error if math.isfinite(error) else None,
        "tolerance": tolerance,
        "milliseconds": milliseconds,
    }
    message = (
        f"{what} differs from float64 by {error:.1e} (at most {tolerance:.0e}); "
        f"{milliseconds:.1f} ms."
    )
    return (
        Row(name, "ok", message, value) if passed else Row(name, "fail", message, value, _WITHOUT)
    )


CHECKS = {
    "mlx": check_mlx,
    "gpu": check_gpu,
    "metal": check_metal,
    "blas": check_blas,
    "native-library": check_native,
    "abi": check_abi,
    "attention": check_attention,
    "compute": check_compute,
    "self-test-mlx": check_self_test_mlx,
    "self-test-attention": check_self_test_attention,
    "self-test-linear": check_self_test_linear,
    "self-test-linear-exact": check_self_test_linear_exact,
    "self-test-small": check_self_test_small,
    "self-test-blocks": check_self_test_blocks,
    "self-test-blocks-exact": check_self_test_blocks_exact,
    "shaders": check_shaders,
}
