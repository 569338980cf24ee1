"""A quick check that a backend computes attention right: one layer against float64 NumPy."""

from __future__ import annotations

import time
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from pamx.attention.backend import backend_named
from pamx.attention.layer import PagedAttentionLayer
from pamx.attention.step import SequenceSlice

TOLERANCE = 1e-5


@dataclass(frozen=True)
class SelfTestResult:
    """The largest absolute error of the output, what is allowed, and how long the layer took."""

    max_error: float
    tolerance: float
    milliseconds: float

    @property
    def passed(self) -> bool:
        return self.max_error <= self.tolerance


def run(kernel: str) -> SelfTestResult:
    """Attends with 8 query heads on 2 KV heads: 70 tokens of prompt, in shuffled pages.

    Args:
        kernel: "native-cpu", "native-metal" or "mlx".

    Raises:
        NativeError: the native library cannot be used.
    """
    backend = backend_named(kernel)
    rng = np.random.default_rng(0)
    tokens, heads, kv_heads, dim, size = 70, 8, 2, 64, 16
    q, k, v = (
        rng.standard_normal((tokens, h, dim)).astype(np.float32)
        for h in (heads, kv_heads, kv_heads)
    )
    layer = PagedAttentionLayer(
        num_blocks=8, block_size=size, kv_heads=kv_heads, head_dim=dim, backend=backend
    )
    part = SequenceSlice([6, 1, 7, 0, 3], context_len=tokens, query_len=tokens)
    start = time.perf_counter()
    found = np.array(layer(mx.array(q), mx.array(k), mx.array(v), [part]))
    elapsed = time.perf_counter() - start

    group = heads // kv_heads
    keys, values = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), keys) * dim**-0.5
    scores[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("hqk,khd->qhd", weights, values)
    return SelfTestResult(float(np.abs(found - expected).max()), TOLERANCE, elapsed * 1e3)
