"""The file of packed weights: a table, and the matrices' bytes as the kernels read them.

Little-endian. 64 bytes of fixed head, the table as JSON, then each matrix at a multiple of
ALIGNMENT. The head and the table have one checksum (XXH3, 64 bits), each matrix its own; between
them is padding that nobody reads. A file is written whole under another name and then renamed, so
one that is short or does not add up was damaged later.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_64_intdigest

__all__ = [
    "ALIGNMENT",
    "DamagedFileError",
    "Entry",
    "Part",
    "Table",
    "checksum",
    "read_table",
    "write",
]

ALIGNMENT = 4096  # bytes: a page, and more than any vector load asks for

_MAGIC = b"pamxpack"
_VERSION = 1
_HEAD = struct.Struct("<8sQQQ")  # magic, version, length of the table, length of the file
_TABLE_AT = 64
_CHECKSUM = struct.Struct("<Q")
_LONGEST_TABLE = 64 << 20
_PIECE = 64 << 20  # bytes a write call; the system takes no more than 2 GiB at once


class DamagedFileError(ValueError):
    """The file is not one of these, or not whole any more."""


@dataclass(frozen=True)
class Entry:
    """Where a matrix lies.

    Attributes:
        source: What it was packed from, as numbers that the caller compares with its own.
        format: What the bytes mean, as numbers too.
        offset, size: In bytes from the start of the file.
        checksum: Of these bytes.
    """

    source: tuple[int, ...]
    format: tuple[int, ...]
    offset: int
    size: int
    checksum: int


@dataclass(frozen=True)
class Table:
    """What a file holds.

    Attributes:
        model: Folder of the model.
        fingerprint: Of everything the bytes were made from.
        size: Length of the file.
        entries: By key.
    """

    model: str
    fingerprint: str
    size: int
    entries: dict[str, Entry]


@dataclass(frozen=True)
class Part:
    """A matrix to write; see Entry."""

    key: str
    source: tuple[int, ...]
    format: tuple[int, ...]
    data: memoryview


def checksum(data: bytes | memoryview) -> int:
    """XXH3 of the bytes; other threads run meanwhile."""
    return xxh3_64_intdigest(data)


def read_table(file: Path) -> Table:
    """The table of a file; its matrices are not looked at.

    Raises:
        OSError: it is not there or cannot be read.
        DamagedFileError: it is not such a file, or not whole.
    """
    if not stat.S_ISREG(file.stat().st_mode):  # a pipe of that name would wait for ever
        raise DamagedFileError(f"{file} is not a file")
    with file.open("rb") as stream:
        start = stream.read(_TABLE_AT)
        size = os.fstat(stream.fileno()).st_size
        if len(start) < _TABLE_AT:
            raise DamagedFileError(f"{file} is too short")
        magic, version, length, expected = _HEAD.unpack_from(start)
        if magic != _MAGIC or version != _VERSION:
            raise DamagedFileError(f"{file} is another kind of file")
        if size != expected or length > min(size - _TABLE_AT, _LONGEST_TABLE):
            raise DamagedFileError(f"{file} is {size} bytes long")
        text = stream.read(length)
    if _CHECKSUM.unpack_from(start, _HEAD.size)[0] != checksum(start[: _HEAD.size] + text):
        raise DamagedFileError(f"{file} has a damaged table")
    return _parse(text, size, file)


def write(file: Path, model: str, fingerprint: str, parts: Sequence[Part]) -> None:
    """Writes a whole file and puts it in its place; the caller keeps others from doing the same.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    sums = [checksum(part.data) for part in parts]
    table, size = _lay_out(model, fingerprint, parts, sums)
    head = _HEAD.pack(_MAGIC, _VERSION, len(table), size)
    head += _CHECKSUM.pack(checksum(head + table))
    scratch = file.with_name(file.name + ".new")
    try:
        with scratch.open("wb") as stream:
            stream.write(head.ljust(_TABLE_AT, b"\0") + table)
            for part in parts:
                stream.seek(_aligned(stream.tell()))
                data = part.data.cast("B")
                for begin in range(0, len(data), _PIECE):
                    stream.write(data[begin : begin + _PIECE])
            stream.truncate(size)
        # Not forced to the disk: gigabytes would take a minute, and a crash that loses some of
        # them costs no more than packing again, because every reader checks every byte.
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)


def _lay_out(
    model: str, fingerprint: str, parts: Sequence[Part], sums: list[int]
) -> tuple[bytes, int]:
    """The table, and the length of the file.

    Offsets are part of the table and depend on its length: they are laid out behind a table of
    greatest length first.
    """
    longest = 2**63

    def table(first: int | None) -> tuple[bytes, int]:
        end, rows = first or 0, {}
        for part, digest in zip(parts, sums, strict=True):
            begin = longest if first is None else _aligned(end)
            end = begin + part.data.nbytes
            rows[part.key] = [part.source, part.format, begin, part.data.nbytes, digest]
        content = {"model": model, "fingerprint": fingerprint, "matrices": rows}
        return json.dumps(content).encode(), end

    room = _TABLE_AT + len(table(None)[0])
    text, size = table(room)
    return text.ljust(room - _TABLE_AT), max(size, room)


def _parse(text: bytes, size: int, file: Path) -> Table:
    try:
        content = json.loads(text)
        entries = {
            str(key): Entry(_numbers(source), _numbers(form), int(at), int(length), int(digest))
            for key, (source, form, at, length, digest) in content["matrices"].items()
        }
        table = Table(str(content["model"]), str(content["fingerprint"]), size, entries)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{file} has a table that makes no sense") from error
    for entry in entries.values():
        inside = 0 < entry.offset <= size - entry.size and entry.size >= 0
        if entry.offset % ALIGNMENT or not inside:
            raise DamagedFileError(f"{file} has a matrix outside of it")
    return table


def _numbers(values: list[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
