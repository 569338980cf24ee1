"""GGUF weight blocks as MLX affine quantisation, exactly, or dequantised where none fits.

MLX's affine form of a group of 32 weights is ``scale * q + bias`` with q an unsigned integer of
4, 5 or 8 bits, packed as one little-endian bit stream per row. A GGUF type maps to it exactly if
its groups are of 32 weights and its value is linear in an integer of that width. Block layouts:
ggml's ``block_q*`` structures (ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as QType

from pamx.errors import ModelError

__all__ = ["GROUP_SIZE", "AffineWeight", "affine", "affine_bits", "dense"]

GROUP_SIZE = 32

# Rows are converted some at a time, to bound the memory that unpacked weights take.
_WEIGHTS_AT_ONCE = 1 << 23

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_FOUR, _LOW = np.uint8(4), np.uint8(0x0F)
# Blocks (n, bytes a block) to q (n, weights a block), scales and biases (n, groups a block).
_Unpack = Callable[[_Bytes], tuple[_Bytes, _Floats, _Floats]]


@dataclass(frozen=True)
class AffineWeight:
    """A quantised matrix in MLX's layout.

    Attributes:
        weight: uint32, shape (rows, columns * bits / 32).
        scales: float32, shape (rows, columns / 32).
        biases: float32, shape (rows, columns / 32).
        bits: Width of one weight: 4, 5 or 8.
    """

    weight: npt.NDArray[np.uint32]
    scales: _Floats
    biases: _Floats
    bits: int


def affine_bits(qtype: QType) -> int | None:
    """Width of the affine form that holds ``qtype`` exactly; None if there is none."""
    return _AFFINE[qtype][0] if qtype in _AFFINE else None


def affine(data: _Bytes, qtype: QType) -> AffineWeight:
    """Repack a matrix of GGUF blocks, shape (rows, bytes a row), without rounding anything."""
    bits, unpack = _AFFINE[qtype]
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    rows, columns = data.shape[0], data.shape[1] // block_bytes * block_weights
    weight = np.empty((rows, columns * bits // 32), np.uint32)
    scales = np.empty((rows, columns // GROUP_SIZE), np.float32)
    biases = np.empty_like(scales)
    step = max(1, _WEIGHTS_AT_ONCE // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        q, scale, bias = unpack(np.ascontiguousarray(data[part]).reshape(-1, block_bytes))
        weight[part] = _pack(q, bits).reshape(weight[part].shape)
        scales[part] = scale.reshape(scales[part].shape)
        biases[part] = bias.reshape(biases[part].shape)
    return AffineWeight(weight, scales, biases, bits)


def dense(data: npt.NDArray[np.generic], qtype: QType) -> _Floats:
    """The values of a tensor of any type that the ``gguf`` package can dequantise, as float32.

    Raises:
        ModelError: The package cannot dequantise this type.
    """
    if qtype in (QType.F32, QType.F16, QType.F64):
        return data.astype(np.float32)
    try:
        values: _Floats = gguf.dequantize(data, qtype)
    except NotImplementedError as error:
        raise ModelError(
            f"Weights of the GGUF type {qtype.name} are not supported.",
            "Use a Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0 or F16 file of the model.",
        ) from error
    return values


def _pack(q: _Bytes, bits: int) -> npt.NDArray[np.uint32]:
    """Pack (n, 32 * k) integers below 2**bits into one bit stream, lowest bits first."""
    if bits == 8:
        packed = q
    elif bits == 4:
        packed = q[:, 0::2] | (q[:, 1::2] << _FOUR)
    else:  # eight weights fill exactly ``bits`` bytes
        eights = q.reshape(-1, 8).astype(np.uint64)
        stream = np.zeros(len(eights), np.uint64)
        for place in range(8):
            stream |= eights[:, place] << np.uint64(bits * place)
        packed = stream.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :bits]
    return np.ascontiguousarray(packed).reshape(len(q), -1).view("<u4").astype(np.uint32)


def _halves(raw: _Bytes) -> _Floats:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _nibbles(raw: _Bytes) -> _Bytes:
    """Low nibbles of a run of bytes are the first weights, high nibbles the ones after."""
    return np.concatenate([raw & _LOW, raw >> _FOUR], axis=-1)


def _fifth_bits(raw: _Bytes) -> _Bytes:
    """(n, 4) bytes, bit i of the little-endian word for weight i, to (n, 32) of 0 or 16."""
    return np.unpackbits(raw, axis=1, bitorder="little") << _FOUR


def _q4_0(blocks: _Bytes) -> tuple[_Bytes, _Floats, _Floats]:
    scale = _halves(blocks[:, :2])
    return _nibbles(blocks[:, 2:]), scale, scale * np.float32(-8)


def _q4_1(blocks: _Bytes) -> tuple[_Bytes, _Floats, _Floats]:
    return _nibbles(blocks[:, 4:]), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q5_0(blocks: _Bytes) -> tuple[_Bytes, _Floats, _Floats]:
    scale = _halves(blocks[:, :2])
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return q, scale, scale * np.float32(-16)


def _q5_1(blocks: _Bytes) -> tuple[_Bytes, _Floats, _Floats]:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return q, _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q8_0(blocks: _Bytes) -> tuple[_Bytes, _Floats, _Floats]:
    # A signed byte plus 128 is the byte with its top bit flipped.
    scale = _halves(blocks[:, :2])
    return blocks[:, 2:] ^ np.uint8(0x80), scale, scale * np.float32(-128)


def _k_scales(blocks: _Bytes) -> tuple[_Floats, _Floats]:
    """Scales and biases of a Q4_K or Q5_K super-block, (n, 8) each, exact in float32.

    A scale is a float16 times a 6-bit integer: 17 significant bits at most.
    """
    first, second, mixed = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = np.concatenate([first & 0x3F, (mixed & 0x0F) | ((first >> 2) & 0x30)], axis=1)
    minimum = np.concatenate([second & 0x3F, (mixed >> 4) | ((second >> 2) & 0x30)], axis=1)
    return _halves(blocks[:, :2]) * scale, -(_halves(blocks[:, 2:4]) * minimum)


def _k_nibbles(raw: _Bytes) -> _Bytes:
    """128 bytes to 256 weights: each run of 32 bytes holds two groups of 32."""
    return _nibbles(raw.reshape(-1, 4, 32)).reshape(-1, 256)


def _q4_k(blocks: _Bytes) -> tuple[_Bytes, _Floats, _Floats]:
    return _k_nibbles(blocks[:, 16:]), *_k_scales(blocks)


def _q5_k(blocks: _Bytes) -> tuple[_Bytes, _Floats, _Floats]:
    # Bit g of byte i is the fifth bit of weight i of group g.
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return _k_nibbles(blocks[:, 48:]) | (high.reshape(-1, 256) << _FOUR), *_k_scales(blocks)


_AFFINE: dict[QType, tuple[int, _Unpack]] = {
    QType.Q4_0: (4, _q4_0),
    QType.Q4_1: (4, _q4_1),
    QType.Q5_0: (5, _q5_0),
    QType.Q5_1: (5, _q5_1),
    QType.Q8_0: (8, _q8_0),
    QType.Q4_K: (4, _q4_k),
    QType.Q5_K: (5, _q5_k),
}
