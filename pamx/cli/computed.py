"""What computes a model, in words for the terminal, and why if that is not what was wanted."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pamx.errors import NativeError

if TYPE_CHECKING:
    from pamx.engine import Engine


def level_lines(engine: Engine) -> list[str]:
    """What computes each layer, what the KV cache holds, how many threads of which kernels."""
    return engine.compute.table(*_surroundings(engine))


def computed_by(engine: Engine) -> str:
    """One line: the mode, a summary of the layers, and the rest as in `level_lines`."""
    levels = f"{engine.compute.mode}: {str(engine.compute).rstrip('.')}"
    return "; ".join([levels, *(f"{name} {text}" for name, text in _surroundings(engine))])


def shortfall(engine: Engine, asked: str | None) -> str:
    """Why a CPU does not compute the model in the mode that was wanted, or "" if it does.

    Args:
        engine: Has loaded it.
        asked: The mode asked for; None: the default.
    """
    import mlx.core as mx

    wanted, found = asked or "fast", engine.compute
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    if found.mode == wanted or not on_cpu or not engine.attention.paged:
        return ""
    begins_with_word = found.reason[1:2].islower()
    why = found.reason[0].lower() + found.reason[1:] if begins_with_word else found.reason
    if found.mode != "mlx":
        return f"Computed in {found.mode}, not {wanted}, because {why}"
    more = " `pamx doctor` tells more." if engine.attention.kernel == "mlx" else ""
    return f"Slow: MLX computes this model, because {why}{more}"


def _surroundings(engine: Engine) -> list[tuple[str, str]]:
    from pamx.native import library

    rows = [] if engine.kv_dtype is None else [("KV cache", engine.kv_dtype)]
    if engine.attention.kernel == "native-cpu":
        with suppress(NativeError):
            native = library()
            rows.append(("threads", f"{native.lib.pamx_num_threads()}, {native.cpu_isa} kernels"))
    return rows
