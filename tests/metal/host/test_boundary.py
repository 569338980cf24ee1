"""Whatever a caller gets wrong, native/metal's C interface answers with an error and a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import Case

from metal.host.library import Buffer, Metal, MetalError
from pamx.native.launch import Launch

TOKENS, HEADS, KV_HEADS, DIM = 2, 4, 2, 64
LARGEST = 2**63 - 1


def attend(metal: Metal, change: Callable[[Any, Any], None]) -> None:
    """A step of two tokens with its tensors or params changed."""
    step = Case([5, 9], [1, 1], HEADS, KV_HEADS, DIM, DIM, 8).build()
    ffi = metal.ffi
    tensors = ffi.new("pamx_metal_tensors*")
    tensors.heads, tensors.kv_heads, tensors.k_dim, tensors.v_dim = HEADS, KV_HEADS, DIM, DIM
    keep = []
    for name, array in (
        ("queries", step.queries),
        ("keys", step.keys),
        ("values", step.values),
        ("key_pool", step.key_pool),
        ("value_pool", step.value_pool),
        ("out", step.queries),
    ):
        keep.append(Buffer(metal, np.zeros(array.shape, np.float32)))
        place = getattr(tensors, name)
        if name in ("queries", "keys", "values"):
            place.buffer = keep[-1].handle
            place.token_stride, place.head_stride = array.shape[1] * DIM, DIM
        else:
            setattr(tensors, name, keep[-1].handle)
    params = ffi.new("pamx_attention_params*", [0.125, 0.0, 0])
    change(tensors, params)
    metal.check(metal.lib.pamx_metal_attention(metal.batch(step), params, tensors, ffi.NULL))


def test_the_step_itself_is_right(metal: Metal) -> None:
    attend(metal, lambda *_: None)


def put(place: str, field: str, value: float) -> Callable[[Any, Any], None]:
    """Sets a field of the tensors, of one of their rows, or of the params."""

    def change(tensors: Any, params: Any) -> None:
        of = {"tensors": tensors, "params": params}
        target = of[place] if place in of else getattr(tensors, place)
        setattr(target, field, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("queries", "token_stride", 2**62), "queries has 2048 bytes and needs 92233720368547"),
        (put("queries", "token_stride", 2**61), "queries has 2048 bytes and needs 92233720368547"),
        (put("keys", "head_stride", LARGEST), "keys has 1024 bytes and needs"),
        (put("values", "offset", LARGEST - 3), "values has 1024 bytes and needs"),
        (put("values", "token_stride", -1), "negative offset or stride"),
        (put("values", "offset", 2), "begins inside an element"),
        (put("tensors", "kv_heads", 2**30), "4 query heads are not a multiple"),
        (put("tensors", "k_dim", 2**31 - 1), "the most are 65536"),
        (put("tensors", "dtype", 3), "dtype 3 is none of pamx_dtype"),
        (put("params", "scale", float("nan")), "scale is not finite"),
        (put("params", "scale", float("-inf")), "scale is not finite"),
        (put("params", "softcap", float("inf")), "softcap"),
        (put("params", "softcap", float("nan")), "softcap"),
        (put("params", "window", -1), "window"),
    ],
)
def test_wrong_numbers(metal: Metal, change: Callable[[Any, Any], None], message: str) -> None:
    with pytest.raises(MetalError, match=message):
        attend(metal, change)


def many_heads(tensors: Any, _: Any) -> None:
    tensors.heads = tensors.kv_heads = 2**30


def test_heads_whose_pools_would_have_more_bytes_than_can_be_counted(metal: Metal) -> None:
    """2^30 heads of 64 floats, in 32 slots or more: the number of bytes is cut off at 2^64."""
    with pytest.raises(MetalError, match="the most are 65536"):
        attend(metal, many_heads)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("grid", (0, 1, 1), "a grid or threadgroup is empty"),
        ("threadgroup", (32, 0, 1), "a grid or threadgroup is empty"),
        ("threadgroup_bytes", 20, "multiples of 16 bytes"),
    ],
)
def test_single_dispatches_that_metal_would_abort_at(
    metal: Metal, field: str, value: Any, message: str
) -> None:
    fields: dict[str, Any] = {"grid": (1, 1, 1), "threadgroup": (256, 1, 1), "threadgroup_bytes": 0}
    fields[field] = value
    launch = Launch(
        source="copy_blocks.metal",
        function="copy_blocks",
        instantiation="",
        constants={},
        tokens_a_row=1,
        **fields,
    )
    with pytest.raises(MetalError, match=message):
        metal.run(launch, {0: Buffer(metal, np.zeros(64, np.uint8))})
