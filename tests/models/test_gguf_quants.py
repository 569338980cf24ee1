"""GGUF blocks against the ``gguf`` package's own dequantisation, bit for bit."""

from __future__ import annotations

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QType
from samples import random_blocks

from pamx.errors import ModelError
from pamx.models.gguf_quants import GROUP_SIZE, affine, affine_bits, dense

AFFINE = [QType.Q4_0, QType.Q4_1, QType.Q5_0, QType.Q5_1, QType.Q8_0, QType.Q4_K, QType.Q5_K]


@pytest.mark.parametrize("qtype", AFFINE, ids=lambda q: q.name)
def test_mlx_dequantises_to_the_same_bits(qtype: QType) -> None:
    blocks = random_blocks(qtype, rows=48, columns=512)
    packed = affine(blocks, qtype)
    ours = mx.dequantize(
        mx.array(packed.weight),
        mx.array(packed.scales),
        mx.array(packed.biases),
        GROUP_SIZE,
        packed.bits,
    )
    np.testing.assert_array_equal(np.array(ours), gguf.dequantize(blocks, qtype))


@pytest.mark.parametrize("qtype", AFFINE, ids=lambda q: q.name)
def test_mlx_multiplies_with_the_packed_weights(qtype: QType) -> None:
    blocks = random_blocks(qtype, rows=40, columns=256)
    packed = affine(blocks, qtype)
    x = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
    ours = mx.quantized_matmul(
        mx.array(x),
        mx.array(packed.weight),
        mx.array(packed.scales),
        mx.array(packed.biases),
        transpose=True,
        group_size=GROUP_SIZE,
        bits=packed.bits,
    )
    expected = x.astype(np.float64) @ gguf.dequantize(blocks, qtype).astype(np.float64).T
    np.testing.assert_allclose(np.array(ours), expected, rtol=1e-4, atol=1e-4)


def test_many_rows_are_converted_in_parts_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks(QType.Q5_K, rows=23, columns=256)
    whole = affine(blocks, QType.Q5_K)
    monkeypatch.setattr("pamx.models.gguf_quants._WEIGHTS_AT_ONCE", 256 * 5)
    parts = affine(blocks, QType.Q5_K)
    np.testing.assert_array_equal(parts.weight, whole.weight)
    np.testing.assert_array_equal(parts.scales, whole.scales)
    np.testing.assert_array_equal(parts.biases, whole.biases)


@pytest.mark.parametrize("qtype", [QType.Q2_K, QType.Q3_K, QType.Q6_K], ids=lambda q: q.name)
def test_types_with_groups_of_16_become_dense(qtype: QType) -> None:
    blocks = random_blocks(qtype, rows=8, columns=256)
    assert affine_bits(qtype) is None
    values = dense(blocks, qtype)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, gguf.dequantize(blocks, qtype))


def test_dense_types_keep_every_value() -> None:
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    np.testing.assert_array_equal(dense(values, QType.F32), values)
    half = values.astype(np.float16)
    np.testing.assert_array_equal(dense(half, QType.F16), half.astype(np.float32))
    brain = gguf.quantize(values, QType.BF16)
    np.testing.assert_array_equal(dense(brain, QType.BF16), gguf.dequantize(brain, QType.BF16))


def test_a_type_nobody_can_read_is_named() -> None:
    with pytest.raises(ModelError, match="Q8_K"):
        dense(np.zeros((1, 292), np.uint8), QType.Q8_K)
