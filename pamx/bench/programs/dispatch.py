"""Which attention kernel and partition really ran, and forcing another partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pamx.errors import NativeError

_NAMES = {
    "GqaDecode": "gqa_decode",
    "SplitKv": "split_kv",
    "Unified": "paged_attention",
    "TiledPrefill": "prefill_tiled",
    "NaxPrefill": "prefill_nax",
    "Mla": "mla_decode",
    "Cpu": "native-cpu",
    "Reference": "mlx",
}


class Watch:
    """What attention ran while this was watching, on this thread.

    Attributes:
        impossible: Why the wanted partition cannot be forced here; "" if it is.
    """

    def __init__(self, impossible: str) -> None:
        from pamx.native.dispatch import dispatch_counts

        self.impossible = impossible
        self._before = dispatch_counts()

    def ran(self) -> dict[str, Any]:
        """The kernel and partition of the last call's decode rows (0: not split), and how many
        calls each kernel served."""
        from pamx.native.dispatch import dispatch_counts, last_dispatches

        last = last_dispatches()
        calls = {
            _NAMES[kind.name]: count - self._before[kind]
            for kind, count in dispatch_counts().items()
            if count > self._before[kind]
        }
        return {
            "kernel": _NAMES[last[0].kind.name] if last else None,
            "partition": last[0].partition if last else None,
            "calls": calls,
        }


@contextmanager
def watched(partition: int | None) -> Iterator[Watch]:
    """Has attention take this partition meanwhile, and watches what runs.

    Args:
        partition: Tokens; None: the planner's own.
    """
    from pamx.native.dispatch import force_partition, set_dispatch_diagnostics

    impossible = ""
    if partition is not None:
        try:
            force_partition(partition)
        except NativeError as error:
            impossible = f"cannot force here: {error.message}"
    before = set_dispatch_diagnostics(True)
    try:
        yield Watch(impossible)
    finally:
        set_dispatch_diagnostics(before)
        with suppress(NativeError):
            force_partition(None)
