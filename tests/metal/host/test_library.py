"""Kernels are compiled when first needed, once, and what goes wrong is said in words."""

from __future__ import annotations

import ctypes
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from oracle import Case

from metal.formats import ROUNDING
from metal.host import library
from metal.host.library import SHADERS, Metal, MetalError, fresh
from metal.host.test_attention import DECODE, PREFILL, check

PAMX_UNSUPPORTED, PAMX_FAILED = 2, 3
LONG = Case([1500], [1], 4, 1, 64, 64, 16)


@pytest.fixture(params=library.names())
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Metal:
    """A library that knows no shaders yet."""
    library.need(library.missing())
    return fresh(request.param, tmp_path)


@pytest.fixture
def shaders(tmp_path: Path) -> Path:
    """A copy of the shaders, to be damaged."""
    return Path(shutil.copytree(SHADERS, tmp_path / "shaders"))


def software(metal: Metal) -> None:
    if metal.software is None:
        pytest.skip("the software device alone can be told what to be")


def test_nothing_runs_without_shaders(new: Metal) -> None:
    with pytest.raises(MetalError, match="nobody has said where the Metal shaders are") as error:
        check(new, DECODE, "float16")
    assert error.value.status == PAMX_UNSUPPORTED


def test_a_shader_that_is_missing_is_named(new: Metal, shaders: Path) -> None:
    (shaders / "kv_write.metal").unlink()
    new.configure(shaders)
    with pytest.raises(MetalError, match=r"kv_write.metal cannot be read: No such file") as error:
        check(new, DECODE, "float16")
    assert error.value.status == PAMX_FAILED


def test_a_shader_that_cannot_be_read_is_named(new: Metal, shaders: Path) -> None:
    """It can be opened: a folder."""
    (shaders / "types.h").unlink()
    (shaders / "types.h").mkdir()
    new.configure(shaders)
    with pytest.raises(MetalError, match=r"types.h cannot be read: Is a directory"):
        check(new, DECODE, "float16")


@pytest.mark.parametrize("file", ["kv_write.metal", "types.h"])
def test_a_shader_that_does_not_compile_is_explained(new: Metal, shaders: Path, file: str) -> None:
    """In the compiler's words, with the line of the file that it is in."""
    text = (shaders / file).read_text() + "constant int broken = nobody_knows_this;\n"
    (shaders / file).write_text(text)
    new.configure(shaders)
    with pytest.raises(MetalError, match="nobody_knows_this") as error:
        check(new, DECODE, "float16")
    assert f"{file}:{text.count(chr(10))}:" in str(error.value)
    assert "shaders/" in str(error.value)
    assert error.value.status == PAMX_FAILED


def test_each_specialisation_is_compiled_once(new: Metal) -> None:
    software(new)
    new.configure()
    before = len(library.compilations)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            check(new, DECODE, "float16")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    sources = library.compilations[before:]
    assert len(sources) == len(set(sources)) >= 2


def test_a_metallib_serves_before_the_sources(new: Metal, tmp_path: Path) -> None:
    """The software device's metallib is a source with its instantiations."""
    software(new)
    new.configure()
    before = len(library.compilations)
    check(new, DECODE, "float16")
    (written,) = [s for s in library.compilations[before:] if "kv_write" in s.splitlines()[-1]]
    metallib = tmp_path / "pamx.metallib"
    metallib.write_text(written)
    other = fresh(Path(new.path).stem.removeprefix("libpamx_"), tmp_path / "other")
    other.configure(SHADERS, metallib)
    before = len(library.compilations)
    check(other, DECODE, "float16")
    after = library.compilations[before:]
    assert after[0] == written  # the metallib itself
    assert not any("kv_write" in s.splitlines()[-1] for s in after[1:])
    assert len(after) > 1


def test_a_metallib_of_another_system_is_no_reason_to_fail(new: Metal, tmp_path: Path) -> None:
    damaged = tmp_path / "pamx.metallib"
    damaged.write_text("this is no library")
    new.configure(SHADERS, damaged)
    check(new, DECODE, "float16")


def test_a_machine_without_a_device(new: Metal) -> None:
    software(new)
    new.configure()
    new.become(name="")
    try:
        with pytest.raises(MetalError, match="this machine has no Metal device") as error:
            new.facts()
        assert error.value.status == PAMX_UNSUPPORTED
    finally:
        new.become()


def test_what_the_machine_says_of_itself(new: Metal) -> None:
    software(new)
    new.configure()
    new.become(cores=38, architecture="applegpu_g17s", os_version="26.2", family=10)
    try:
        facts = new.facts()
        text = check(new, DECODE, "float16")
    finally:
        new.become()
    assert (facts.cores, facts.family, facts.threadgroup_bytes) == (38, 10, 32768)
    assert new.ffi.string(facts.architecture) == b"applegpu_g17s"
    assert new.ffi.string(facts.os_version) == b"26.2"
    assert facts.working_set_bytes == 8 << 30
    assert "38 cores" in text


def test_grouped_decoding_where_the_work_fills_the_gpu(new: Metal) -> None:
    software(new)
    new.configure()
    new.become(cores=1)
    try:
        text = check(new, replace(LONG, heads=8, kv_heads=2), "float16")
    finally:
        new.become()
    assert "launches: gqa_decode" in text
    assert ", then split_kv_reduce" in text


def test_tensor_units_where_gpu_and_system_have_them(new: Metal) -> None:
    """In Metal 4, on the software Metal's model of matmul2d."""
    software(new)
    new.configure()
    new.become(architecture="applegpu_g17s", os_version="26.2", family=10)
    try:
        # Tensor units take probabilities in the rows' type.
        text = check(new, PREFILL, "float16", error=4 * ROUNDING["float16"])
    finally:
        new.become()
    assert "launches: prefill_nax" in text


def test_a_mac_says_what_it_is(metal: Metal) -> None:
    facts = metal.facts()
    assert facts.cores > 0
    assert facts.family >= 7
    assert facts.working_set_bytes > 1 << 30


def test_a_threadgroup_that_this_gpu_cannot_run(new: Metal) -> None:
    software(new)
    new.configure()
    new.become(most_threads=64)
    try:
        with pytest.raises(MetalError, match=r"needs threadgroups of \d+ threads.*64 at most") as e:
            check(new, DECODE, "float16")
        assert e.value.status == PAMX_UNSUPPORTED
    finally:
        new.become()


def test_a_buffer_that_the_host_forgot_is_found(new: Metal, shaders: Path) -> None:
    """By the software device alone: Metal checks it when its validation is on."""
    software(new)
    path = shaders / "kv_write.metal"
    text = path.read_text()
    first = "[[buffer(kNewKeys)]],"
    assert first in text
    path.write_text(text.replace(first, f"{first} const device int* more [[buffer(17)]],", 1))
    new.configure(shaders)
    with pytest.raises(MetalError, match=r"buffer 17 \(more\) is not bound"):
        check(new, DECODE, "float16")


def test_dispatches_between_barriers_may_run_in_any_order(new: Metal) -> None:
    new.configure()
    with new.descending():
        check(new, LONG, "float16")


def test_nothing_leaks(new: Metal, shaders: Path) -> None:
    """Neither calls nor failures leave objects of the device behind."""
    software(new)
    new.configure(shaders)
    (shaders / "copy_blocks.metal").write_text("nothing that compiles")
    pool = library.Buffer(new, library.np.zeros((4, 16), "uint32"))

    def use() -> int:
        for _ in range(3):
            check(new, LONG, "float16")
            with pytest.raises(MetalError):
                new.copy_blocks(pool, [0], [1])
        return int(new.software.softmetal_objects_alive())

    assert use() == use()


@pytest.mark.parametrize("name", ["mrc", "arc"])
def test_objects_and_scratch(name: str) -> None:
    """What of native/metal has no C interface: objects_test.mm."""
    library.need(library.build.missing())
    test = ctypes.CDLL(str(getattr(library.build.build(), f"{name}_test"))).objects_test
    test.restype = ctypes.c_char_p
    assert test() is None
