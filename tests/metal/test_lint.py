"""Wrong kernels are refused, each for its own reason, and right ones are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metal import softmetal

HERE = Path(__file__).parent


def taken(path: Path, language: int = 310) -> None:
    softmetal.compile(path, language=language)
    softmetal.check(path, language=language)


@pytest.mark.parametrize("path", sorted((HERE / "bad").glob("*.metal")), ids=lambda p: p.stem)
def test_a_wrong_kernel_is_refused_for_its_own_reason(path: Path) -> None:
    reason = re.match(r"// expect: (.*)", path.read_text())
    assert reason
    with pytest.raises(softmetal.MetalError) as caught:
        taken(path)
    assert re.search(reason[1], str(caught.value))
    assert f"{path.name}:" in str(caught.value)


@pytest.mark.parametrize("path", sorted((HERE / "good").glob("*.metal")), ids=lambda p: p.stem)
def test_a_right_kernel_is_taken(path: Path) -> None:
    taken(path)


def test_lambdas_and_constexpr_if_are_part_of_metal_4(tmp_path: Path) -> None:
    path = tmp_path / "four.metal"
    path.write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "template <int N> float f() { if constexpr (N > 1) return 1; else return 2; }\n"
        "kernel void k(device float* out [[buffer(0)]]) {\n"
        "  auto g = [](float x) { return x + f<2>(); };\n  out[0] = g(1.0f);\n}\n"
    )
    taken(path, language=400)
    with pytest.raises(softmetal.LintError, match=r"four\.metal:5: error: a lambda expression"):
        softmetal.check(path)
