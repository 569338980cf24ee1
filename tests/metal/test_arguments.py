"""Argument structs and buffer indices of the tests are those that shaders are compiled with."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from metal import softmetal
from metal.arguments import NO_MAXIMUM, STRUCTS, Buffer
from metal.attention_case import SHADERS


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_arrives(name: str, tmp_path: Path) -> None:
    dtype = STRUCTS[name]
    fields = dtype.names or ()
    source = tmp_path / f"{name}.metal"
    reads = "\n".join(f"  out[{i}] = float(s.{field});" for i, field in enumerate(fields))
    source.write_text(
        "#include <metal_stdlib>\n"
        f'#include "{SHADERS / "params.h"}"\n'
        f"kernel void read(constant pamx::{name}& s [[buffer(0)]],\n"
        "                 device float* out [[buffer(1)]]) {\n"
        f"{reads}\n  out[{len(fields)}] = float(sizeof(pamx::{name}));\n}}\n"
    )
    values = np.zeros(1, dtype)
    for i, field in enumerate(fields):
        values[field] = i + 1
    out = np.zeros(len(fields) + 1, np.float32)
    softmetal.compile(source).run("read", (1, 1, 1), (1, 1, 1), {0: values, 1: out})
    assert out.tolist() == [*range(1, len(fields) + 1), dtype.itemsize]


def test_buffer_indices_are_those_of_params_h() -> None:
    listed = re.search(r"enum AttentionBuffer \{(.*?)\};", (SHADERS / "params.h").read_text(), re.S)
    assert listed
    found = dict(re.findall(r"k(\w+) = (\d+)", listed[1]))
    assert {b.name.replace("_", "").lower(): str(b.value) for b in Buffer} == {
        name.lower(): index for name, index in found.items()
    }


def test_no_maximum_is_that_of_limits_h() -> None:
    found = re.search(r"NO_MAXIMUM = (\S+)f;", (SHADERS / "limits.h").read_text())
    assert found
    assert np.float32(found[1]) == NO_MAXIMUM
