"""The model of Metal 4's matmul2d against NumPy, in every storage order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metal import softmetal

SOURCE = Path(__file__).parent / "kernels" / "tensor_ops.metal"
DTYPES = {
    "half": (np.float16, np.float16),
    "float": (np.float32, np.float32),
    "mixed": (np.float32, np.float16),
}
METAL = {np.float16: "half", np.float32: "float"}
SHAPES = [(16, 32, 16), (32, 16, 16), (32, 32, 32)]
CASES = [
    (kind, shape, ta, tb, add)
    for kind, shapes in (("half", SHAPES), ("float", SHAPES[:1]), ("mixed", SHAPES[:1]))
    for shape in shapes
    for ta in (False, True)
    for tb in (False, True)
    for add in (False, True)
]


def name(kind: str, shape: tuple[int, int, int], *flags: bool) -> str:
    return "_".join(["multiply", kind, *map(str, shape), *(str(int(f)) for f in flags)])


def instances() -> list[str]:
    lines = []
    for kind, shape, *flags in CASES:
        types = [METAL[t] for t in DTYPES[kind]]
        arguments = ", ".join([*types, *map(str, shape), *(str(f).lower() for f in flags)])
        kernel = f"multiply<{arguments}>"
        host = name(kind, shape, *flags)
        lines.append(f'template [[host_name("{host}")]] [[kernel]] decltype({kernel}) {kernel};')
    return lines


@pytest.fixture(scope="module")
def program() -> softmetal.Program:
    return softmetal.compile(SOURCE, instances(), language=400)


@pytest.mark.parametrize("order", [0, 1, 4])
@pytest.mark.parametrize(("kind", "shape", "ta", "tb", "add"), CASES)
def test_products(
    program: softmetal.Program,
    kind: str,
    shape: tuple[int, int, int],
    ta: bool,
    tb: bool,
    add: bool,
    order: int,
) -> None:
    rng = np.random.default_rng(1)
    m, n, k = shape
    a = rng.standard_normal((k, m) if ta else (m, k)).astype(DTYPES[kind][0])
    b = rng.standard_normal((n, k) if tb else (k, n)).astype(DTYPES[kind][1])
    c, d = rng.standard_normal((m, n)).astype(np.float32), np.full((m, n), np.nan, np.float32)
    buffers = {0: a, 1: b, 2: c, 3: d}
    program.run(name(kind, shape, ta, tb, add), (1, 1, 1), (32, 1, 1), buffers, order=order)
    if kind == "mixed":  # relaxed precision: the float operand is rounded as the other one is
        a = a.astype(np.float16)
    left, right = (x.astype(np.float64) for x in (a.T if ta else a, b.T if tb else b))
    np.testing.assert_allclose(d, left @ right + (c if add else 0), atol=1e-5)


def test_the_rules_are_kept(program: softmetal.Program) -> None:
    d = np.zeros(32, np.float32)
    with pytest.raises(softmetal.MetalError, match="element 8 of a cooperative tensor that has 8"):
        program.run("element_past_capacity", (1, 1, 1), (32, 1, 1), {0: d})
    with pytest.raises(softmetal.MetalError, match=r"lane 0 is at matmul2d .*, lane 30 has retur"):
        program.run("not_every_lane", (1, 1, 1), (32, 1, 1), {0: d})
    with pytest.raises(softmetal.MetalError, match="in a simdgroup of 16 threads"):
        program.run("not_every_lane", (1, 1, 1), (16, 1, 1), {0: d})


def test_the_address_spaces_are_checked() -> None:
    softmetal.check(SOURCE, instances()[:2], language=400)
