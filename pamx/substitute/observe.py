"""Watching a model compute: which module was called with what, and what came of it.

A layer's code is not read; it is run once over a few rows, and every module call in it and every
attention call is noted with its arrays. What the layer does between these calls follows from the
numbers (see `pamx.substitute.structure`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.attention.backend import Backend
from pamx.attention.cache import PagedKVCache, StepState
from pamx.attention.placeholders import Placeholders
from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.kv.pool import BlockPool, LayerGeometry
from pamx.substitute.classes import Swaps, Watched

ROWS = 5  # tokens of the observed pass: few, and more than one
_TOKENS = [2, 7, 5, 11, 3]


@dataclass(eq=False)
class Call:
    """One call of a module.

    Attributes:
        name: The module's name in the model.
        module: The module.
        args, kwargs: What it was called with.
        out: What it returned.
        attended: The attention calls within it.
        within: The module calls within it, each with those inside it before it.
    """

    name: str
    module: Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any = None
    attended: list[Attended] = field(default_factory=list)
    within: list[Call] = field(default_factory=list)

    @property
    def x(self) -> mx.array | None:
        """The first argument, if it is an array."""
        first = self.args[0] if self.args else None
        return first if isinstance(first, mx.array) else None

    def arrays(self) -> list[mx.array]:
        return [a for a in (self.x, self.out) if isinstance(a, mx.array)]


@dataclass(eq=False)
class Attended:
    """One attention call: the rows that it stored and read, [1, heads, rows, dim]."""

    cache: PagedKVCache
    queries: mx.array
    keys: mx.array
    values: mx.array
    out: mx.array
    scale: float
    sinks: mx.array | None


class Recorder:
    """Notes calls while a model runs."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.attended: list[Attended] = []
        self._open: list[Call] = []

    def call(self, name: str, module: Module, run: Any, args: Any, kwargs: Any) -> Any:
        call = Call(name, module, args, kwargs)
        self._open.append(call)
        try:
            call.out = run(*args, **kwargs)
        finally:
            self._open.pop()
        self.calls.append(call)
        for outer in self._open:
            outer.within.append(call)
        return call.out

    def attention(self, attended: Attended) -> None:
        self.attended.append(attended)
        for outer in self._open:
            outer.attended.append(attended)


class _Recorded(Watched):
    _pamx_recorder: Recorder
    _pamx_name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = super().__call__
        return self._pamx_recorder.call(self._pamx_name, self, run, args, kwargs)


class _RecordingCache(PagedKVCache):
    def __init__(self, pool: Any, state: StepState, recorder: Recorder) -> None:
        super().__init__(pool, state)
        self._recorder = recorder
        self._rows: tuple[mx.array, mx.array] | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self._rows = (keys, values)
        return super().update_and_fetch(keys, values)

    def attend(
        self, queries: mx.array, *, scale: float, mask: object, sinks: mx.array | None
    ) -> mx.array:
        out = super().attend(queries, scale=scale, mask=mask, sinks=sinks)
        assert self._rows is not None
        keys, values = self._rows
        self._recorder.attention(Attended(self, queries, keys, values, out, float(scale), sinks))
        return out


def observe(
    model: Module,
    layers: list[LayerGeometry],
    block_size: int,
    backend: Backend,
    placeholders: Placeholders,
) -> tuple[list[Call], list[Attended]]:
    """Runs the model over a few tokens on pages.

    Args:
        model: With its attention substituted.
        layers: Its caches' geometry.
        block_size: Tokens a block.
        backend: Serves attention.
        placeholders: Shared with the substituted attention calls.

    Returns:
        The calls of modules that were handed one layer's cache, outermost ones only, in order,
        and all attention calls.
    """
    blocks = -(-ROWS // block_size)
    pool = BlockPool(layers, blocks, block_size, backend.storage)
    state = StepState(backend, placeholders)
    recorder = Recorder()
    caches: list[PagedKVCache] = [_RecordingCache(p, state, recorder) for p in pool.layers]
    part = SequenceSlice(tuple(range(blocks)), ROWS, ROWS)
    state.set_step(Step([part], Packing.SEQUENCE, blocks, block_size))
    try:
        with _recorded(model, recorder):
            model(mx.array([_TOKENS]), cache=caches)
    finally:
        state.set_step(None)
    layer_calls = _outermost([c for c in recorder.calls if _cache_of(c) is not None])
    for call in layer_calls:
        mx.eval([a for c in (call, *call.within) for a in c.arrays()])
        mx.eval([(a.queries, a.keys, a.values, a.out) for a in call.attended])
    return layer_calls, recorder.attended


def _cache_of(call: Call) -> PagedKVCache | None:
    found = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, PagedKVCache)]
    return found[0] if len(found) == 1 else None


def _outermost(calls: list[Call]) -> list[Call]:
    inner = {id(c) for call in calls for c in call.within}
    return [c for c in calls if id(c) not in inner]


@contextmanager
def _recorded(model: Module, recorder: Recorder) -> Iterator[None]:
    swaps = Swaps()
    own = {id(m): dict(vars(m)) for _, m in model.named_modules()}  # type: ignore[no-untyped-call]
    try:
        for name, module in model.named_modules():  # type: ignore[no-untyped-call]
            # Some modules stand in several places of the model.
            if not isinstance(module, _Recorded) and callable(module):
                swaps.mix_in(module, _Recorded, recorder=recorder, name=name)
        yield
    finally:
        modules = [m for _, m in model.named_modules()]  # type: ignore[no-untyped-call]
        swaps.undo()
        for module in modules:
            vars(module).clear()
            vars(module).update(own[id(module)])
