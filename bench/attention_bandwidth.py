"""Attention alone against the machine's read bandwidth, and its prefill rate.

    python bench/attention_bandwidth.py [--rounds 7] [--threads 2]

Decode: one query token a sequence over float16 pools with float32 rows, at 8,192 and 32,768 tokens
of context, batch 1 and 8, geometries (query heads, KV heads, head size) (32, 8, 128) and
(9, 3, 64), blocks of 16 tokens, in the order in which a fresh pool hands them out and in random
order. In each round the same number of bytes is read
from the same pools by threads that only add (`read`), in turn with attention (`attend`);
the share is read time over attention time, so that a busy machine slows both. What lies in the
third-level cache is told by the size of the pools. Prefill: one prompt of 512 and of 2,048
tokens, in multiply-adds a second. Medians. Writes bench/results/attention_bandwidth.json.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from record import write_result

from pamx.native import library
from pamx.native.loader import check
from pamx.native.ops import NativeBatch, empty, paged_attention
from pamx.native.plan import plan_cpu_attention

BLOCK = 16
GEOMETRIES = ((32, 8, 128), (9, 3, 64))
# Sums 64-bit words in eight chains: compilers turn it into the widest loads they may use.
READER = """
#include <stddef.h>
#include <stdint.h>
uint64_t read_words(const uint64_t* p, size_t n) {
  uint64_t s[32] = {0};
  for (size_t i = 0; i + 32 <= n; i += 32)
    for (int j = 0; j < 32; ++j) s[j] += p[i + j];
  uint64_t total = 0;
  for (int j = 0; j < 32; ++j) total += s[j];
  return total;
}
"""


def compile_reader(folder: Path) -> Any:
    source, target = folder / "reader.c", folder / "reader.so"
    source.write_text(READER)
    compiler = os.environ.get("CC", "cc").split()
    flags = ["-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(target)], check=True)
    read = ctypes.CDLL(str(target)).read_words
    read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
    return read


class Readers:
    """Threads that stand ready to read, as the worker pool's do; the caller reads too."""

    def __init__(self, read: Any, count: int) -> None:
        self._read, self._count = read, count
        self._spans: list[tuple[int, int]] = []
        self._begin = threading.Barrier(count)
        self._end = threading.Barrier(count)
        for number in range(1, count):
            threading.Thread(target=self._serve, args=(number,), daemon=True).start()

    def _work(self, number: int) -> None:
        for address, size in self._spans:
            part = size // self._count // 256 * 256
            self._read(address + number * part, part // 8)

    def _serve(self, number: int) -> None:
        while True:
            self._begin.wait()
            self._work(number)
            self._end.wait()

    def run(self, spans: list[tuple[int, int]]) -> None:
        self._spans = spans
        self._begin.wait()
        self._work(0)
        self._end.wait()


def pool(shape: tuple[int, ...]) -> mx.array:
    array = empty(shape, mx.float16)
    mx.eval(array)
    view = np.array(array, copy=False)
    noise = np.random.default_rng(0).standard_normal(shape[1:], np.float32).astype(np.float16)
    view[:] = noise
    return array


def seconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def decode(
    geometry: tuple[int, int, int],
    batch: int,
    context: int,
    in_order: bool,
    rounds: int,
    readers: Readers,
) -> dict[str, Any]:
    heads, kv_heads, dim = geometry
    blocks = context // BLOCK
    pools = [pool((batch * blocks, BLOCK, kv_heads, dim)) for _ in range(2)]
    spans = [(np.array(p, copy=False).ctypes.data, p.nbytes) for p in pools]
    order = np.arange(batch * blocks)
    if not in_order:
        np.random.default_rng(1).shuffle(order)
    order = order.reshape(batch, blocks)
    lens = np.full(batch, context)
    step = NativeBatch(np.arange(batch + 1), lens, order, batch * blocks, BLOCK)
    queries = mx.random.normal((batch, heads, 1, dim))
    mx.eval(queries)

    def attend() -> None:
        mx.eval(paged_attention(step, queries, None, None, *pools, scale=dim**-0.5)[0])

    attend()
    readers.run(spans)
    times = [(seconds(attend), seconds(lambda: readers.run(spans))) for _ in range(rounds)]
    size = sum(p.nbytes for p in pools)
    plan = plan_cpu_attention(*geometry, dim, [1] * batch, [context] * batch)
    return {
        "geometry": geometry,
        "batch": batch,
        "context": context,
        "blocks": "in order" if in_order else "shuffled",
        "megabytes": round(size / 1e6, 1),
        "read_gb_s": round(size / statistics.median(r for _, r in times) / 1e9, 2),
        "attend_gb_s": round(size / statistics.median(a for a, _ in times) / 1e9, 2),
        "share": round(statistics.median(r / a for a, r in times), 3),
        "best_share": round(max(r / a for a, r in times), 3),
        "partition": plan.partition,
        "items": plan.items,
        "threads": plan.threads,
    }


def prefill(geometry: tuple[int, int, int], tokens: int, rounds: int) -> dict[str, Any]:
    heads, kv_heads, dim = geometry
    blocks = tokens // BLOCK
    pools = [pool((blocks, BLOCK, kv_heads, dim)) for _ in range(2)]
    order = np.random.default_rng(1).permutation(blocks)[None]
    step = NativeBatch(np.array([0, tokens]), np.array([tokens]), order, blocks, BLOCK)
    rows = [mx.random.normal((1, h, tokens, dim)) for h in (heads, kv_heads, kv_heads)]
    mx.eval(rows)

    def attend() -> None:
        mx.eval(paged_attention(step, *rows, *pools, scale=dim**-0.5)[0])

    attend()
    times = [seconds(attend) for _ in range(rounds)]
    work = tokens * (tokens + 1) / 2 * heads * 2 * dim
    return {
        "geometry": geometry,
        "tokens": tokens,
        "ms": round(statistics.median(times) * 1e3, 2),
        "giga_multiply_adds_a_second": round(work / statistics.median(times) / 1e9, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    native = library()
    check(native, native.lib.pamx_set_num_threads(args.threads))
    figures: dict[str, Any] = {"threads": args.threads, "kv_dtype": "float16", "decode": []}
    with tempfile.TemporaryDirectory() as folder:
        readers = Readers(compile_reader(Path(folder)), args.threads)
        cases = itertools.product(GEOMETRIES, (1, 8), (8192, 32768), (True, False))
        for geometry, batch, context, in_order in cases:
            found = decode(geometry, batch, context, in_order, args.rounds, readers)
            print(json.dumps(found), flush=True)
            figures["decode"].append(found)
            mx.clear_cache()
    figures["prefill"] = []
    for geometry in GEOMETRIES:
        for tokens in (512, 2048):
            found = prefill(geometry, tokens, args.rounds)
            print(json.dumps(found), flush=True)
            figures["prefill"].append(found)
    write_result(
        "attention_bandwidth",
        "attention alone: share of the machine's read bandwidth in decode, and prefill's rate",
        f"python bench/attention_bandwidth.py --rounds {args.rounds} --threads {args.threads}",
        figures,
    )


if __name__ == "__main__":
    main()
