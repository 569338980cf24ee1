"""Opening a GGUF file: metadata and tensors, or one sentence on what is wrong with the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.constants import GGUFValueType

from pamx.errors import ModelError, NotAModelError

__all__ = ["Gguf", "open_gguf"]

# No language model has near as much of any of these; a damaged count says so, and the file may be
# long enough to be read for hours.
_MAX_ARRAY = 1 << 21
_MAX_KEYS = 1 << 14
_MAX_TENSORS = 1 << 17

_REFETCH = "Download or copy the file again; if it stays so, its maker has to fix it."


@dataclass(frozen=True)
class Gguf:
    """One GGUF file.

    Attributes:
        path: The file.
        metadata: Key to Python value (int, float, bool, str or a list of these).
        tensors: Name to tensor. ``data`` maps the file: rows of values for F32 and F16, rows of
            bytes for every other type; the row order and the axes are numpy's.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ReaderTensor]

    def require(self, key: str) -> Any:
        """The value of a metadata key that the conversion cannot do without."""
        try:
            return self.metadata[key]
        except KeyError:
            raise ModelError(
                f"{self.path} lacks the metadata key {key}.",
                "The file cannot be converted; use another GGUF of the model, or the original.",
            ) from None


class _CutShortError(ValueError):
    pass


class _BoundedReader(GGUFReader):  # type: ignore[misc]
    """The package's reader, with two repairs.

    It takes a slice past the end of the file for an empty value, and it reads an array element
    by element, which takes seconds for a vocabulary.
    """

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None
    ) -> npt.NDArray[Any]:
        self._need(int(offset) + np.dtype(dtype).itemsize * int(count))
        values: npt.NDArray[Any] = super()._get(offset, dtype, count, override_order)
        return values

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        length = int(self._get(orig_offs + 4, np.uint64)[0])
        if length > _MAX_ARRAY:
            raise ValueError("an array is impossibly long")
        start = int(orig_offs) + 12
        if kind == GGUFValueType.STRING:
            parts, end = self._strings(start, length)
        elif kind in self.gguf_scalar_to_np:
            parts = [self._get(start, self.gguf_scalar_to_np[kind], length)]
            end = start + parts[0].nbytes
        else:
            raise ValueError("an array holds arrays")
        return end - int(orig_offs), parts, list(range(len(parts))), [GGUFValueType.ARRAY, kind]

    def _strings(self, start: int, count: int) -> tuple[list[npt.NDArray[Any]], int]:
        """``count`` strings, each after its 64-bit length, and where the last one ends."""
        raw, parts, at = np.asarray(self.data), [], start
        for _ in range(count):
            self._need(at + 8)
            end = at + 8 + int.from_bytes(raw[at : at + 8].tobytes(), "little")
            self._need(end)
            parts.append(raw[at + 8 : end])
            at = end
        return parts, at

    def _need(self, end: int) -> None:
        if end > self.data.size:
            raise _CutShortError


def open_gguf(path: Path) -> Gguf:
    """Read the header of a GGUF file and map its tensors.

    Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

    Raises:
        ModelError: The file cannot be read, is no GGUF file, has a version that the ``gguf``
            package does not read, is cut short, damaged, or one part of several.
    """
    _check_start(path)
    try:
        reader = _BoundedReader(path)
        metadata = {
            key: field.contents()
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.")
        }
    except _CutShortError as error:
        raise ModelError(f"{path} is cut short: data that it lists is not in it.", _REFETCH) from (
            error
        )
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, IndexError, OverflowError, TypeError, MemoryError) as error:
        raise ModelError(f"{path} is a damaged GGUF file: {error}.", _REFETCH) from error
    for tensor in reader.tensors:
        if tensor.n_elements < 1:
            raise ModelError(f"{path} is a damaged GGUF file: {tensor.name} is empty.", _REFETCH)
    if int(metadata.get("split.count", 0)) > 1:
        raise ModelError(
            f"{path} is one part of a model that is split over {metadata['split.count']} files.",
            "Merge them first with llama.cpp's `llama-gguf-split --merge`.",
        )
    return Gguf(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def _check_start(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(24)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    if start[:4] != b"GGUF"[: len(start)] or not start:
        raise NotAModelError(f"{path} is not a GGUF file.", "Check that it is the file you meant.")
    if len(start) < 8:
        raise ModelError(f"{path} is cut short: it holds {len(start)} bytes.", _REFETCH)
    version = int.from_bytes(start[4:8], "little")
    if version not in (2, 3):
        big_endian = int.from_bytes(start[4:8], "big") in (2, 3)
        what = "is big-endian" if big_endian else f"has GGUF version {version}"
        raise ModelError(
            f"{path} {what}; pamx reads little-endian files of versions 2 and 3.",
            "Convert the model again with a current llama.cpp.",
        )
    tensors, keys = (int.from_bytes(start[at : at + 8], "little") for at in (8, 16))
    if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
        raise ModelError(
            f"{path} is a damaged GGUF file: it claims {tensors:,} tensors and {keys:,} metadata "
            "keys.",
            _REFETCH,
        )
