"""What a caller may ask of a model's computation, checked before anything is loaded."""

from __future__ import annotations

from typing import Literal, get_args

import mlx.core as mx

from pamx.errors import RequestError
from pamx.substitute.levels import ComputeMode

KvName = Literal["auto", "float32", "float16", "bfloat16"]
KvDtype = KvName | mx.Dtype | None


def checked_compute(value: object) -> ComputeMode | None:
    """A mode, or None: the default.

    Raises:
        RequestError: it is neither.
    """
    if value is None:
        return None
    modes: tuple[ComputeMode, ...] = get_args(ComputeMode)
    for mode in modes:
        if isinstance(value, str) and value == mode:
            return mode
    names = ", ".join(repr(mode) for mode in modes)
    raise RequestError(f"compute must be one of {names}, not {value!r}.")


def checked_kv_dtype(value: object) -> mx.Dtype | None:
    """A dtype that pages can hold, or None for "auto".

    Args:
        value: A name, an mx.Dtype, or None: "auto".

    Raises:
        RequestError: it is none of these.
    """
    if value is None or (isinstance(value, str) and value == "auto"):
        return None
    for name in get_args(KvName)[1:]:
        dtype: mx.Dtype = getattr(mx, name)
        named = isinstance(value, str) and value == name
        if named or (isinstance(value, mx.Dtype) and value == dtype):
            return dtype
    names = ", ".join(repr(name) for name in get_args(KvName))
    raise RequestError(
        f"kv_dtype must be one of {names}, an mx.Dtype of these or None, not {value!r}."
    )
