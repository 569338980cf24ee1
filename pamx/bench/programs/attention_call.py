"""One attention call by itself, and how fast this machine copies and reads as many bytes.

It answers `call`: settings with `what` ("attention", "copy" or "read"), context, batch, heads,
block_size, kv_dtype and partition, to the mean seconds of a call. A decode step: one query token a
sequence, whose keys and values lie in pages in the order in which a fresh pool hands them out.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pamx.bench.programs import dispatch
from pamx.bench.programs.serving import serve
from pamx.sizes import counted

if TYPE_CHECKING:
    import mlx.core as mx

    from pamx.attention.layer import PagedAttentionLayer

_SAMPLE_SECONDS = 0.05
_MOST_CALLS = 2000
_PATTERN = 61  # tokens after which keys and values repeat
_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Shape:
    """What is attended: sequences of `context` tokens; heads are (query, KV, size)."""

    context: int
    batch: int
    heads: tuple[int, int, int]
    block_size: int
    kv_dtype: str

    @property
    def blocks(self) -> int:
        """Of one sequence."""
        return -(-self.context // self.block_size)

    @property
    def nbytes(self) -> int:
        """Keys and values of all sequences."""
        _, kv, dim = self.heads
        return 2 * self.context * self.batch * kv * dim * _DTYPES[self.kv_dtype]


class AttentionCall:
    def __init__(self) -> None:
        self._shape: Shape | None = None
        self._call: Callable[[], mx.array] | None = None
        self._kernel = ""
        self._expected: np.ndarray[Any, Any] | None = None
        self._machine: Machine | None = None
        self._threads = 1

    def hello(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import pamx
        from pamx.bench.programs.facts import library_facts
        from pamx.native.loader import set_num_threads
        from pamx.native.threads import usable_cpus

        if question.get("threads"):
            set_num_threads(question["threads"])
        self._threads = question.get("threads") or usable_cpus()
        yield {"type": "ready", "version": pamx.__version__, "library": library_facts()}

    def fit(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """For each shape why it does not fit, with the arithmetic, or ""."""
        from pamx.kv.budget import measure_rest

        budget = measure_rest()
        reasons = []
        for shape in map(_shape, question["shapes"]):
            needed = 3 * shape.nbytes  # the pages, and what is copied from and to
            why = (
                f"{counted(shape.batch, 'sequence')} of {shape.context:,} tokens take "
                f"{shape.nbytes:,} bytes of pages, and as much twice over to be copied: "
                f"{budget.explain()}."
            )
            reasons.append(why if needed > budget.pages else "")
        yield {"type": "fits", "unfit": reasons}

    def call(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        settings = question["settings"]
        shape = _shape(settings)
        if settings["what"] != "attention":
            if self._machine is None or self._machine.nbytes != shape.nbytes:
                self._machine = None
                self._machine = Machine(shape.nbytes, self._threads)
            move = self._machine.copy if settings["what"] == "copy" else self._machine.read
            seconds, count = repeated(move)
            moved = shape.nbytes * (2 if settings["what"] == "copy" else 1)
            answer = {"type": "called", "seconds": seconds, "calls": count}
            yield answer | {"bytes": moved, "pool_bytes": shape.nbytes}
            return
        with dispatch.watched(settings.get("partition")) as watch:
            if shape != self._shape:
                self._prepare(shape)
            assert self._call is not None
            found = self._evaluated()
            error = self._error(found)
            ran = watch.ran()
            seconds, count = repeated(self._run)
        yield {
            "type": "called",
            "seconds": seconds,
            "calls": count,
            "bytes": shape.nbytes,
            "pool_bytes": shape.nbytes,
            "dispatch": ran,
            "cannot_force": watch.impossible,
            "output_error": error,
        }

    def _prepare(self, shape: Shape) -> None:
        import mlx.core as mx

        from pamx.attention.layer import PagedAttentionLayer
        from pamx.attention.step import SequenceSlice

        if self._shape is None or (shape.context, shape.batch) != (
            self._shape.context,
            self._shape.batch,
        ):
            self._expected = None
        self._shape = self._call = None
        query, kv, dim = shape.heads
        dtype: mx.Dtype = getattr(mx, shape.kv_dtype)
        layer = PagedAttentionLayer(
            num_blocks=shape.blocks * shape.batch,
            block_size=shape.block_size,
            kv_heads=kv,
            head_dim=dim,
            dtype=dtype,
        )
        _fill(layer, shape, dtype)
        self._kernel = layer.backend.name
        slices = [
            SequenceSlice(range(i * shape.blocks, (i + 1) * shape.blocks), shape.context, 1)
            for i in range(shape.batch)
        ]
        mx.random.seed(0)
        queries = mx.random.normal((shape.batch, query, dim))
        # The native kernels take float32 rows over any pages, as the engine gives them.
        queries = queries if self._kernel == "native-cpu" else queries.astype(dtype)
        mx.eval(queries)
        self._call = lambda: layer(queries, None, None, slices)
        self._shape = shape

    def _run(self) -> None:
        import mlx.core as mx

        assert self._call is not None
        mx.eval(self._call())

    def _evaluated(self) -> np.ndarray[Any, Any]:
        import mlx.core as mx

        assert self._call is not None
        return np.array(self._call().astype(mx.float32))

    def _error(self, found: np.ndarray[Any, Any]) -> float:
        """The largest difference from the first arm of this context and batch."""
        if self._expected is None:
            self._expected = found
        return float(np.abs(found - self._expected).max())


def _fill(layer: PagedAttentionLayer, shape: Shape, dtype: mx.Dtype) -> None:
    """The same keys and values for the same token, whatever the size of a page."""
    import mlx.core as mx

    _, kv, dim = shape.heads
    place = np.arange(shape.blocks * shape.block_size) % _PATTERN
    rng = np.random.default_rng(0)
    for name in ("keys", "values"):
        noise = mx.array(rng.standard_normal((_PATTERN, kv, dim), np.float32)).astype(dtype)
        one = noise[mx.array(place)].reshape(shape.blocks, shape.block_size, kv, dim)
        pages = mx.contiguous(mx.tile(one, (shape.batch, 1, 1, 1)))
        mx.eval(pages)
        setattr(layer.pool, name, pages)


class Machine:
    """Moves bytes and computes nothing: threads on slices of two buffers.

    Args:
        nbytes: Of each buffer.
        threads: How many take part.
    """

    def __init__(self, nbytes: int, threads: int) -> None:
        self.nbytes = nbytes
        words = max(1, nbytes // 8)
        self._source = np.arange(words, dtype=np.int64)
        self._target = np.zeros(words, np.int64)
        edges = [words * i // threads for i in range(threads + 1)]
        self._parts = [slice(a, b) for a, b in itertools.pairwise(edges) if b > a]
        self._threads = ThreadPoolExecutor(threads)

    def copy(self) -> None:
        def part(where: slice) -> None:
            np.copyto(self._target[where], self._source[where])

        list(self._threads.map(part, self._parts))

    def read(self) -> None:
        def part(where: slice) -> None:
            self._source[where].sum()

        list(self._threads.map(part, self._parts))


def repeated(work: Callable[[], None]) -> tuple[float, int]:
    """Mean seconds of a call, and of how many: together they take a twentieth of a second."""
    begin = time.perf_counter()
    work()
    once = time.perf_counter() - begin
    count = min(_MOST_CALLS, max(1, math.ceil(_SAMPLE_SECONDS / max(once, 1e-9))))
    begin = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - begin) / count, count


def _shape(fields: dict[str, Any]) -> Shape:
    return Shape(
        fields["context"],
        fields["batch"],
        tuple(fields["heads"]),
        fields["block_size"],
        fields["kv_dtype"],
    )


def main() -> None:
    program = AttentionCall()
    serve({"hello": program.hello, "fit": program.fit, "call": program.call})


if __name__ == "__main__":
    main()
