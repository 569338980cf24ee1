"""Packed weights on disk: there after the first start, right or absent, and never in the way."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import packed_model
import pytest
from packed_model import KEYS, load

from pamx.errors import ModelError, NativeError
from pamx.models import packed_file
from pamx.models.packed import fingerprint, forget, kept_bytes

SIZE = 10_000  # not a multiple of a page
ALL = set(KEYS)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(tmp_path: Path, pamx_home: Path) -> Path:  # noqa: ARG001
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def cache(pamx_home: Path) -> Path:
    return pamx_home / "packed"


def only_file(cache: Path) -> Path:
    (file,) = cache.iterdir()
    return file


def test_the_second_start_makes_nothing(model: Path, cache: Path) -> None:
    assert load(model, SIZE) == set()
    before = only_file(cache).stat()
    assert load(model, SIZE) == ALL
    after = only_file(cache).stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    assert kept_bytes() == {model: before.st_size}


def test_every_damaged_byte_that_means_something_is_noticed(model: Path, cache: Path) -> None:
    """Each place is flipped in turn; `load` asserts that no wrong byte is ever handed out."""
    load(model, SIZE)
    file = only_file(cache)
    right = file.read_bytes()
    entries = packed_file.read_table(file).entries
    table_end = right.rindex(b"}", 0, entries["a"].offset)
    for place in (0, 8, 16, 24, 32, 64, 80, table_end):
        _flip(file, right, place)
        assert load(model, SIZE) == set(), place
        assert file.read_bytes() == right  # written anew
    for key, entry in entries.items():
        for place in (0, SIZE // 2, SIZE - 1):
            _flip(file, right, entry.offset + place)
            assert load(model, SIZE) == ALL - {key}, place
            assert file.read_bytes() == right
    _flip(file, right, entries["a"].offset + SIZE)  # padding
    assert load(model, SIZE) == ALL


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100, 4096, 4097, -1])
def test_a_file_of_another_length_is_written_anew(model: Path, cache: Path, length: int) -> None:
    load(model, SIZE)
    file = only_file(cache)
    right = file.read_bytes()
    file.write_bytes(right[:length])
    assert load(model, SIZE) == set()
    file.write_bytes(right + b"\0")
    assert load(model, SIZE) == set()
    assert load(model, SIZE) == ALL


def test_nonsense_with_a_right_checksum_is_refused(model: Path, cache: Path) -> None:
    load(model, SIZE)
    file = only_file(cache)
    for table in (
        b"[]",
        b'{"model": "", "fingerprint": "", "matrices": {"a": [[1], [1], 4096]}}',
        b'{"model": "", "fingerprint": "", "matrices": {"a": [[1], [1], 4096, 1000000, 0]}}',
        b'{"model": "", "fingerprint": "", "matrices": {"a": [[1], [1], 4096, -1, 0]}}',
        b'{"model": "", "fingerprint": "", "matrices": {"a": [[1], [1], 100, 1, 0]}}',
        b"[" * 100_000,
    ):
        size = max(8192, 64 + len(table))
        head = packed_file._HEAD.pack(b"pamxpack", 1, len(table), size)
        sum_ = packed_file._CHECKSUM.pack(packed_file.checksum(head + table))
        file.write_bytes(((head + sum_).ljust(64, b"\0") + table).ljust(size, b"\0"))
        with pytest.raises(packed_file.DamagedFileError):
            packed_file.read_table(file)
        assert load(model, SIZE) == set()


def test_another_format_is_made_anew(model: Path) -> None:
    load(model, SIZE, kind=1)
    assert load(model, SIZE, kind=2) == set()
    assert load(model, SIZE, kind=2) == ALL


def test_a_matrix_more_is_added(model: Path, cache: Path) -> None:
    load(model, SIZE, keys=("a", "b"))
    with only_file(cache).open("rb") as before:  # as a process that has it mapped
        right = before.read()
        assert load(model, SIZE) == {"a", "b"}
        before.seek(0)
        assert before.read() == right
    assert load(model, SIZE) == ALL


def test_a_changed_model_replaces_its_file(model: Path, cache: Path) -> None:
    before = fingerprint(model, "build", "0.32")
    assert before == fingerprint(model, "build", "0.32")
    (model / "config.json").write_text('{"a": 1}')
    after = fingerprint(model, "build", "0.32")
    others = {fingerprint(model, "other", "0.32"), fingerprint(model, "build", "0.33")}
    assert len({before, after, *others}) == 4
    load(model, SIZE, before)
    assert load(model, SIZE, after) == set()
    assert load(model, SIZE, after) == ALL
    only_file(cache)


def test_another_file_of_the_same_size_and_time_is_another_model(model: Path) -> None:
    old = model / "config.json"
    facts = old.stat()
    before = fingerprint(model, "build", "0.32")
    new = model.parent / "other.json"
    new.write_text("[]")
    new.replace(old)
    os.utime(old, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (old.stat().st_size, old.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    assert fingerprint(model, "build", "0.32") != before


@pytest.mark.parametrize("kind", ["pipe", "dangling link"])
def test_what_is_no_file_is_not_waited_for(model: Path, cache: Path, kind: str) -> None:
    load(model, SIZE)
    name = only_file(cache)
    name.unlink()
    if kind == "pipe":
        os.mkfifo(name)
    else:
        name.symlink_to(cache / "nowhere")
    assert load(model, SIZE) == set()
    assert load(model, SIZE) == ALL


def test_files_of_models_that_are_gone_go_too(model: Path, cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    load(other, SIZE)
    other.rmdir()
    (cache / "left-over.weights.new").write_bytes(b"half")
    load(model, SIZE)
    only_file(cache)


def test_forget_takes_one_model_s_file(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    load(model, SIZE)
    load(other, SIZE)
    assert forget(model) > 3 * SIZE
    assert set(kept_bytes()) == {other}
    assert forget(model) == 0


def test_the_limit_takes_the_one_used_longest_ago(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAMX_WEIGHT_CACHE", "100K")  # room for two
    models = [tmp_path / name for name in ("one", "two", "three")]
    for folder in models[:2]:
        folder.mkdir()
        load(folder, SIZE)
        time.sleep(0.01)
    load(models[0], SIZE)  # used again
    models[2].mkdir()
    load(models[2], SIZE)
    assert set(kept_bytes()) == {models[0], models[2]}
    monkeypatch.setenv("PAMX_WEIGHT_CACHE", "20K")
    assert load(model, SIZE) == set()
    assert load(model, SIZE) == set()


def test_it_can_be_switched_off(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(model, SIZE)
    monkeypatch.setenv("PAMX_WEIGHT_CACHE", "0")
    assert load(model, SIZE) == set()
    only_file(cache)
    monkeypatch.setenv("PAMX_WEIGHT_CACHE", "much")
    with pytest.raises(ModelError, match="'much', not a size"):
        load(model, SIZE)


def test_a_folder_that_cannot_be_written_is_no_error(model: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert load(model, SIZE) == set()
    assert load(model, SIZE) == set()


def test_a_full_disk_leaves_nothing_half_written(model: Path, cache: Path) -> None:
    for limit in (0, 100, 5_000, 20_000, 30_000):
        done = _pack_elsewhere(model, SIZE, limit)
        assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
        assert list(cache.iterdir()) == []
    assert load(model, SIZE) == set()
    right = only_file(cache).read_bytes()
    only_file(cache).write_bytes(right[:-1])
    assert _pack_elsewhere(model, SIZE, 20_000).returncode == 0
    assert only_file(cache).read_bytes() == right[:-1]


def test_a_kill_at_any_time_leaves_nothing_half_written(model: Path, cache: Path) -> None:
    size = 30_000_000
    begun = 0
    for delay in (0.0, 0.01, 0.02, 0.04):
        with _start(model, size) as process:
            until = time.monotonic() + 30
            while not (halves := list(cache.glob("*.new"))) and time.monotonic() < until:
                if process.poll() is not None:
                    break
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        begun += bool(halves)
        mapped = load(model, size)
        assert mapped in (set(), ALL)
        only_file(cache)
        only_file(cache).unlink()
    assert begun


def test_processes_that_start_together(model: Path, cache: Path) -> None:
    size = 3_000_000
    processes = [_start(model, size) for _ in range(3)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert set(out.strip()) in (set(), ALL)
    only_file(cache)
    assert load(model, size) == ALL


def test_a_note_goes_to_a_terminal_alone(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.parent.mkdir()
    cache.write_text("")
    load(model, SIZE)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    load(model, SIZE)
    assert capsys.readouterr().err.startswith("The packed weights were not kept: ")


def test_a_folder_moved_under_the_same_fingerprint_is_another_model(
    model: Path, tmp_path: Path
) -> None:
    load(model, SIZE)
    moved = model.rename(tmp_path / "moved")
    assert load(moved, SIZE) == set()


def test_a_library_that_cannot_map_makes_everything(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, SIZE)

    def refuse(*_: object) -> None:
        raise NativeError("no")

    monkeypatch.setattr(packed_model, "map_file", refuse)
    assert load(model, SIZE) == set()


def test_bytes_that_cannot_be_checked_are_not_used(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, SIZE)

    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pamx.models.packed.checksum", refuse)
    assert load(model, SIZE) == set()


def _flip(file: Path, right: bytes, place: int) -> None:
    file.write_bytes(right[:place] + bytes([right[place] ^ 0x10]) + right[place + 1 :])


def _start(model: Path, size: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, packed_model.__file__, str(model), str(size)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _pack_elsewhere(model: Path, size: int, largest: int) -> subprocess.CompletedProcess[str]:
    """Packs in a process that can write no file larger than this, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-B", packed_model.__file__, str(model), str(size)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest)),
    )
