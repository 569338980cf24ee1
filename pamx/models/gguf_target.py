"""What a converted GGUF file depends on besides its source: this device, and the converter's age.

Apart from the converter, which takes a while to import, because every start asks for it.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["CONVERTER_VERSION", "Dtype", "dtype_for_device"]

# Part of every cache key: raise it whenever the files that come out of gguf_convert change.
CONVERTER_VERSION = 1

Dtype = Literal["float32", "float16"]


def dtype_for_device() -> Dtype:
    """The type for scales and dense weights on MLX's default device.

    A CPU computes float32 several times faster than float16, and float32 holds every GGUF
    scale exactly. A GPU computes and stores float16 best; there, the combined scales of the
    K types and bfloat16 weights are rounded to float16.
    """
    import mlx.core as mx

    return "float32" if mx.default_device().type == mx.DeviceType.cpu else "float16"
