"""Damaged GGUF files: one clear sentence each, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import time
from pathlib import Path

import pytest
from samples import write_gguf

from pamx import models
from pamx.errors import ModelError
from pamx.models.gguf_convert import convert
from pamx.models.gguf_file import open_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


def refused(path: Path, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        open_gguf(path)
    assert str(path) in caught.value.message


def test_cut_short_anywhere(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    header = whole.index(b"output_norm.weight") + 60
    cuts = {5, 8, 15, 24, 30, 100, 1000, header // 2, header - 30, header + 40, len(whole) - 1}
    cuts |= set(range(24, header, header // 40))
    for cut in sorted(cuts):
        path.write_bytes(whole[:cut])
        refused(path, "cut short|damaged")


def test_other_files_named_gguf(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    for content in (b"", b"PK\x03\x04 a zip file", b"<html>404</html>", bytes(4096)):
        path.write_bytes(content)
        refused(path, "not a GGUF file")
    path.write_bytes(whole[:4] + struct.pack("<I", 1) + whole[8:])
    refused(path, "GGUF version 1")
    path.write_bytes(whole[:4] + struct.pack("<I", 99) + whole[8:])
    refused(path, "GGUF version 99")
    path.write_bytes(whole[:4] + struct.pack(">I", 3) + whole[8:])
    refused(path, "big-endian")


def test_damaged_lengths_do_not_hang_or_exhaust_memory(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    huge = struct.pack("<Q", 1 << 60)
    types_at = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    for at in (8, 16, 24, types_at):
        path.write_bytes(whole[:at] + huge + whole[at + 8 :])
        refused(path, "cut short|damaged")


def test_absurd_counts_in_a_file_that_is_long_enough(tmp_path: Path, whole: bytes) -> None:
    """Zeros read as keys and strings without end."""
    path = tmp_path / "m.gguf"
    tokens_at = whole.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    for at, count, words in (
        (8, 1 << 40, "claims 1,099,511,627,776 tensors"),
        (16, 1 << 40, "1,099,511,627,776 metadata keys"),
        (tokens_at, 1 << 23, "an array is impossibly long"),
    ):
        path.write_bytes(whole[:at] + struct.pack("<Q", count) + bytes(8))
        os.truncate(path, 1 << 32)
        began = time.process_time()
        refused(path, words)
        assert time.process_time() - began < 5


def test_flipped_bits_in_the_header_never_escape_as_another_error(
    tmp_path: Path, whole: bytes
) -> None:
    path, folder = tmp_path / "m.gguf", tmp_path / "out"
    vocabulary = range(
        whole.index(b"tokenizer.ggml.tokens") + 100, whole.index(b"tokenizer.ggml.bos_token_id")
    )
    end = whole.index(b"output_norm.weight") + 60
    places = [at for at in range(8, end) if at not in vocabulary]
    rng = random.Random(0)
    for _ in range(150):
        content = bytearray(whole)
        content[rng.choice(places)] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with contextlib.suppress(ModelError):
            convert(path, folder, "float32")


def test_nothing_is_left_in_the_cache(tmp_path: Path, whole: bytes, pamx_home: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match="cut short"):
        models.load(str(path))
    left = [p for p in pamx_home.rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert left == []
    assert models.cached() == [m for m in models.cached() if m.source == "hub"]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no file or folder .*absent\.gguf"):
        models.load(str(tmp_path / "absent.gguf"))
