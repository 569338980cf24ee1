"""float32, float16 and bfloat16 arrays as the bytes that a shader reads; bfloat16 as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[Any]

STORAGE: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
}
# The largest relative error of a value that is rounded to nearest.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# What rows and pools may be in: the same, or 16-bit pools below float32 rows.
PAIRS = [
    ("float32", "float32"),
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
]


def to_bits(values: Floats, dtype: str) -> Bits:
    """Rounded to nearest even; NaN stays NaN."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):  # to infinity, as on the device
            return np.ascontiguousarray(values, STORAGE[dtype])
    words = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (words + 0x7FFF + (words >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def from_bits(bits: Bits, dtype: str) -> Floats:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32)


def rounded(values: Floats, dtype: str) -> Floats:
    return from_bits(to_bits(values, dtype), dtype)


def poison(shape: tuple[int, ...], dtype: str) -> Bits:
    """NaN, every bit set: memory that nobody has written."""
    out = np.empty(shape, STORAGE[dtype])
    out.view(np.uint8)[...] = 0xFF
    return out
