"""Kernels that this project did not write run on the software Metal and give the right answers.

They are MLX's own attention kernels, read from the installed wheel: what the software Metal takes
and computes is thus not only what our shaders happen to use.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from metal import softmetal

# What sdpa_vector.h takes from another header, which needs Apple's internal functions.
LIMITS = """
#include <metal_stdlib>
using namespace metal;
typedef bfloat bfloat16_t;
template <typename U> struct Limits {
  static constexpr constant U finite_min = metal::numeric_limits<U>::lowest();
};
"""
TOLERANCE = {"float": 2e-5, "half": 2e-3}
DTYPES = {"float": np.float32, "half": np.float16}


def include_folder() -> Path:
    spec = importlib.util.find_spec("mlx")
    folders = [
        Path(name) / "include" for name in (spec.submodule_search_locations or [] if spec else [])
    ]
    kernels = "mlx/backend/metal/kernels/sdpa_vector.h"
    return next(folder for folder in folders if (folder / kernels).exists())


def kernels_of(tmp_path: Path, header: str, instances: list[tuple[str, str]], language: int = 310):
    path = tmp_path / "mlx.metal"
    path.write_text(f'{LIMITS}\n#include "mlx/backend/metal/kernels/{header}"\n')
    lines = [
        f'template [[host_name("{name}")]] [[kernel]] decltype({kernel}) {kernel};'
        for name, kernel in instances
    ]
    return softmetal.compile(path, lines, language, [include_folder()])


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False) -> np.ndarray:
    """[heads, tokens, dim] over [kv_heads, context, dim], in float64."""
    group = len(q) // len(k)
    k, v = (np.repeat(x.astype(np.float64), group, 0) for x in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    if causal:
        tokens, context = scores.shape[1:]
        late = np.arange(context) > np.arange(tokens)[:, None] + context - tokens
        scores[:, late] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def random(kind: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(DTYPES[kind]) for shape in shapes]


def scalar(value: float, dtype: type) -> np.ndarray:
    return np.array([value], dtype)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("kind", ["float", "half"])
def test_vector_attention(tmp_path: Path, kind: str, order: int) -> None:
    program = kernels_of(tmp_path, "sdpa_vector.h", [("sdpa", f"sdpa_vector<{kind}, 128>")])
    heads, kv_heads, context, dim = 8, 2, 100, 128
    q, k, v = random(kind, (heads, 1, dim), (kv_heads, context, dim), (kv_heads, context, dim))
    out = np.zeros_like(q)
    buffers = {0: q, 1: k, 2: v, 3: out}
    buffers |= {4: scalar(heads // kv_heads, np.int32), 5: scalar(context, np.int32)}
    buffers |= {i: scalar(context * dim, np.uint64) for i in (6, 8)}
    buffers |= {i: scalar(dim, np.uint64) for i in (7, 9)}
    buffers |= {10: scalar(dim**-0.5, np.float32)}
    constants = dict.fromkeys(range(20, 26), False)
    program.run("sdpa", (heads, 1, 1), (1024, 1, 1), buffers, constants, order=order)
    np.testing.assert_allclose(out, attention(q, k, v), atol=TOLERANCE[kind])


@pytest.mark.parametrize("kind", ["float", "half"])
def test_vector_attention_in_two_passes(tmp_path: Path, kind: str) -> None:
    program = kernels_of(
        tmp_path,
        "sdpa_vector.h",
        [
            ("first", f"sdpa_vector_2pass_1<{kind}, 64>"),
            ("second", f"sdpa_vector_2pass_2<{kind}, 64>"),
        ],
    )
    heads, kv_heads, context, dim, blocks = 6, 2, 333, 64, 32
    q, k, v = random(kind, (heads, 1, dim), (kv_heads, context, dim), (kv_heads, context, dim))
    partial = np.full((heads, blocks, dim), np.nan, q.dtype)
    sums, tops = np.full((2, heads, blocks), np.nan, np.float32)
    out = np.zeros_like(q)
    buffers = {0: q, 1: k, 2: v, 3: partial, 4: sums, 5: tops, 7: scalar(context, np.int32)}
    buffers |= {i: scalar(context * dim, np.uint64) for i in (8, 10)}
    buffers |= {i: scalar(dim, np.uint64) for i in (9, 11)}
    buffers |= {12: scalar(dim**-0.5, np.float32)}
    constants = {**dict.fromkeys(range(20, 26), False), 26: blocks}
    shape = (kv_heads, 1, blocks), (32, heads // kv_heads, 1)
    program.run("first", *shape, buffers, constants)
    merge = {0: partial, 1: sums, 2: tops, 3: out, 4: scalar(blocks, np.int32)}
    program.run("second", (heads, 1, 1), (1024, 1, 1), merge, constants)
    np.testing.assert_allclose(out, attention(q, k, v), atol=TOLERANCE[kind])


ATTENTION_PARAMS = np.dtype(
    [(name, np.int32) for name in ["B", "H", "D", "qL", "kL", "gqa_factor"]]
    + [("scale", np.float32)]
    + [
        (name, np.int32)
        for name in ["NQ", "NK", "NQ_aligned", "NK_aligned", "qL_rem", "kL_rem", "qL_off"]
    ]
    + [(name, np.int64, 3) for name in ["Q", "K", "V", "O"]]
)  # struct AttnParams of steel/attn/params.h


def tiled_attention(
    program: softmetal.Program, kind: str, bq: int, bk: int, threads: int, *, dim: int, order: int
) -> None:
    heads, kv_heads, tokens, context = 2, 1, 45, 83
    q, k, v = random(kind, (heads, tokens, dim), (kv_heads, context, dim), (kv_heads, context, dim))
    out = np.zeros_like(q)
    params = np.zeros(1, ATTENTION_PARAMS)
    values = {"B": 1, "H": heads, "D": dim, "qL": tokens, "kL": context}
    values |= {"gqa_factor": heads // kv_heads, "NQ": -(-tokens // bq), "NK": -(-context // bk)}
    values |= {"NQ_aligned": tokens // bq, "NK_aligned": context // bk}
    values |= {"qL_rem": tokens % bq, "kL_rem": context % bk, "qL_off": context - tokens}
    for name, value in values.items():
        params[name] = value
    params["scale"] = dim**-0.5
    for name, x in {"Q": q, "K": k, "V": v, "O": out}.items():
        params[name] = [x.size, x.shape[1] * dim, dim]
    constants = {200: False, 201: False, 300: False, 301: True, 302: False, 303: False}
    program.run(
        "attention",
        (-(-tokens // bq), heads, 1),
        (threads, 1, 1),
        {0: q, 1: k, 2: v, 3: out, 4: params},
        constants,
        order=order,
    )
    np.testing.assert_allclose(out, attention(q, k, v, causal=True), atol=TOLERANCE[kind])


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("kind", "bk"), [("float", 16), ("half", 32)])
def test_tiled_attention_on_simdgroup_matrices(
    tmp_path: Path, kind: str, bk: int, order: int
) -> None:
    kernel = f"attention<{kind}, 32, {bk}, 64, 64, 4, 1, {kind}, float>"
    header = "steel/attn/kernels/steel_attention.h"
    program = kernels_of(tmp_path, header, [("attention", kernel)], language=400)
    tiled_attention(program, kind, 32, bk, 128, dim=64, order=order)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("kind", ["float", "half"])
def test_tiled_attention_on_the_model_of_tensor_units(
    tmp_path: Path, kind: str, order: int
) -> None:
    kernel = f"attention_nax<{kind}, 64, 32, 64, 64, 4, 1, {kind}, float>"
    header = "steel/attn/kernels/steel_attention_nax.h"
    program = kernels_of(tmp_path, header, [("attention", kernel)], language=400)
    tiled_attention(program, kind, 64, 32, 128, dim=64, order=order)
