"""Computing logits only for the rows that need them.

A packed step has many rows inside of prompts whose logits nobody reads, and the output projection
is the largest matrix of a small model. The loaded model's projection gets a subclass that first
picks rows; it is found by what it is, and the admission check proves that the rest of the model
does not mind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.substitute.classes import Swaps, Undo

# What mlx-lm's models call an output projection that is not the embedding.
_PROJECTIONS = ("lm_head", "embed_out")


class RowSelector:
    """Which packed rows the output projection computes; by default all."""

    def __init__(self) -> None:
        self._rows: mx.array | None = None
        self._taken = False  # whether the model's last layer has picked them already

    @property
    def active(self) -> bool:
        """Whether some rows are to be picked."""
        return self._rows is not None

    @contextmanager
    def only(self, rows: list[int]) -> Iterator[None]:
        """Within this context, a forward pass returns logits of these packed rows alone."""
        self._rows, self._taken = mx.array(rows), False
        try:
            yield
        finally:
            self._rows = None

    def select(self, hidden: mx.array) -> mx.array:
        """[1, T, dim] to [1, rows, dim], or [T, 1, dim] to [rows, 1, dim]."""
        if self._rows is None or self._taken:
            return hidden
        return mx.take(hidden, self._rows, axis=1 if hidden.shape[0] == 1 else 0)

    def select_early(self, hidden: mx.array) -> mx.array:
        """Like `select`, before the end: the projection finds the rows picked."""
        selected = self.select(hidden)
        self._taken = self._rows is not None
        return selected


def substitute_output(model: Module, selector: RowSelector) -> Undo:
    """Makes the model's output projection heed `selector`; returns a function that undoes it."""
    swaps = Swaps()
    modules, method = output_projections(model)
    for module in modules:
        swaps.swap(module, _selecting(type(module), method, selector))
    return swaps.undo


def output_projections(model: Module) -> tuple[list[Module], str]:
    """The modules that may give logits, and the method by which they do."""
    modules = dict(model.named_modules())  # type: ignore[no-untyped-call]
    heads = [m for name, m in modules.items() if name.rsplit(".", 1)[-1] in _PROJECTIONS]
    if heads:
        return heads, "__call__"
    return [m for m in modules.values() if hasattr(type(m), "as_linear")], "as_linear"


def _selecting(original: type, method: str, selector: RowSelector) -> type:
    compute: Any = getattr(original, method)

    def select_first(self: Module, hidden: mx.array) -> mx.array:
        out: mx.array = compute(self, selector.select(hidden))
        return out

    return type(
        original.__name__, (original,), {method: select_first, "__module__": original.__module__}
    )
