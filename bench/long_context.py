"""131,072 tokens of context inside 16 GiB: pages, and mlx-lm's cache, under a hard limit.

    python bench/long_context.py [--tokens 131072] [--dtype float32] [--decode 4]

A model of Llama-3.2-1B's geometry, with random weights quantised to 4 bits, on a pool for the
context and 64 tokens more. The process limits its own address space (RLIMIT_AS), so that passing
the budget is an error and not a guess. The context is not computed: random keys and values are
written into the pages, which are taken in random order. Then the model decodes, and one layer's
attention over the whole context is compared with float64 NumPy on the gathered pages. A second
process tries the same keys and values on mlx-lm's own cache under the same limit, and its tokens
are compared. Writes bench/results/long_context.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BUDGET = 16 << 30
SPARE = 64  # tokens of the pool beyond the context
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 131_072 + SPARE,
    "tie_word_embeddings": True,
}
LAYERS, HEADS, KV_HEADS, DIM = 16, 32, 8, 64
SCALE = DIM**-0.5
# Keys are this much larger than queries are, so that the softmax tells tokens apart.
KEY_DEVIATION = 4.0
PIECE = 4096  # tokens written at a time
Rows = tuple[Any, Any]  # keys and values, [tokens, kv_heads, dim]


def random_rows(layer: int, tokens: int, dtype: str) -> Iterator[tuple[int, Rows]]:
    """(position, rows) of one layer's context, piece by piece; always the same."""
    rng = np.random.default_rng(layer)
    for start in range(0, tokens, PIECE):
        shape = (min(PIECE, tokens - start), KV_HEADS, DIM)
        keys = rng.standard_normal(shape, np.float32) * np.float32(KEY_DEVIATION)
        values = rng.standard_normal(shape, np.float32)
        yield start, (keys.astype(dtype), values.astype(dtype))


def random_model(dtype: str) -> Any:
    """The model in 4 bits, evaluated piece by piece: it never exists in full precision."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import llama

    mx.random.seed(5)
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    model.set_dtype(getattr(mx, dtype))
    nn.quantize(model, group_size=64, bits=4)
    for part in (model.model.embed_tokens, *model.layers, model):
        mx.eval(part.parameters())
        mx.clear_cache()
    return model


def on_pages(tokens: int, dtype: str, decode: int) -> dict[str, Any]:
    import mlx.core as mx

    from pamx.attention.step import Packing, SequenceSlice, Step
    from pamx.kv import budget
    from pamx.kv.block_table import BlockTable
    from pamx.kv.limits import own_bytes
    from pamx.substitute.admission import Admission
    from pamx.substitute.paged_model import PagedModel

    model = random_model(dtype)
    weights = mx.get_active_memory()
    # pamx decides as on a machine of which the budget is all that there is.
    budget.available_bytes = lambda: BUDGET - own_bytes()
    memory = budget.measure_memory()
    allowed = memory.budget(budget.Footprint(weights, 0, 0)).pages
    paged = PagedModel(model, context=tokens + SPARE, admission=Admission(True, True))
    pool = paged.pool
    # Blocks given back in random order come out in random order.
    everything = paged.manager.allocate(paged.manager.num_blocks)
    random.Random(3).shuffle(everything)
    paged.manager.release(everything)
    table = BlockTable(paged.manager)
    table.grow(tokens)
    blocks = np.array(table.blocks)
    for number, layer in enumerate(pool.layers):
        views = [np.array(pages, copy=False) for pages in (layer.keys, layer.values)]
        for start, rows in random_rows(number, tokens, dtype):
            positions = np.arange(start, start + len(rows[0]))
            where = blocks[positions // pool.block_size], positions % pool.block_size
            for view, new in zip(views, rows, strict=True):
                view[where] = new
        del views
    filled = status_bytes()

    def step(count: int) -> Step:
        part = SequenceSlice(tuple(table.blocks), table.num_tokens, count)
        return Step([part], Packing.SEQUENCE, pool.num_blocks, pool.block_size)

    error = far_end_error(paged, step(1), table.blocks, tokens, dtype)
    answer, seconds, last = [], [], 1
    for _ in range(decode):
        begin = time.perf_counter()
        table.grow(1)
        logits = paged.forward(step(1), mx.array([last]), [0])
        last = int(mx.argmax(logits[0]))
        seconds.append(round(time.perf_counter() - begin, 2))
        answer.append(last)
    return {
        "weights_bytes": weights,
        "pool_bytes": pool.nbytes,
        "kernel": paged.backend.name,
        "tokens": answer,
        "seconds_a_token": seconds,
        "attention_error_at_the_far_end": error,
        "after_filling": filled,
        "at_the_end": status_bytes(),
        "mlx_peak_bytes": mx.get_peak_memory(),
        "bytes_that_pamx_allows_pages_in_the_budget": allowed,
    }


def far_end_error(paged: Any, step: Any, blocks: list[int], tokens: int, dtype: str) -> float:
    """One query over the whole context in the last layer: largest difference from float64,
    relative to the largest output."""
    import mlx.core as mx

    layer = paged.pool.layers[-1]
    query = np.random.default_rng(99).standard_normal((HEADS, DIM)).astype(dtype)
    inputs = mx.array(query)[None, :, None, :]
    out = paged.backend.attend(step, layer, inputs, None, None, scale=SCALE)
    found = np.array(out[0, :, 0].astype(mx.float32))
    expected = np.empty((HEADS, DIM))
    pages = [np.array(p, copy=False) for p in (layer.keys, layer.values)]
    for kv in range(KV_HEADS):
        keys, values = (p[blocks, :, kv].reshape(-1, DIM)[:tokens].astype(float) for p in pages)
        for head in range(kv * (HEADS // KV_HEADS), (kv + 1) * (HEADS // KV_HEADS)):
            scores = keys @ query[head].astype(float) * SCALE
            weights = np.exp(scores - scores.max())
            expected[head] = weights @ values / weights.sum()
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def on_own_cache(tokens: int, dtype: str, decode: int) -> dict[str, Any]:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    model = random_model(dtype)
    caches = make_prompt_cache(model)
    for number, cache in enumerate(caches):
        dense = [np.empty((1, KV_HEADS, tokens, DIM), dtype) for _ in range(2)]
        for start, rows in random_rows(number, tokens, dtype):
            for whole, new in zip(dense, rows, strict=True):
                whole[0, :, start : start + len(new)] = new.transpose(1, 0, 2)
        cache.state = (*(mx.array(whole) for whole in dense), tokens)
        del dense
        mx.eval(cache.state[:2])
    print(json.dumps({"after_filling": status_bytes()}), flush=True)
    answer, seconds, last = [], [], 1
    for _ in range(decode):
        begin = time.perf_counter()
        last = int(mx.argmax(model(mx.array([[last]]), cache=caches)[0, -1]))
        seconds.append(round(time.perf_counter() - begin, 2))
        answer.append(last)
    return {
        "tokens": answer,
        "seconds_a_token": seconds,
        "at_the_end": status_bytes(),
        "mlx_peak_bytes": mx.get_peak_memory(),
    }


def status_bytes() -> dict[str, int]:
    """Peaks of this process so far: resident memory, and address space."""
    text = Path("/proc/self/status").read_text()
    names = {"peak_resident_bytes": "VmHWM", "peak_address_space_bytes": "VmPeak"}
    found = {name: re.search(rf"{field}:\s+(\d+) kB", text) for name, field in names.items()}
    return {name: int(match[1]) * 1024 for name, match in found.items() if match}


def run_limited(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs one part in a process of its own; says how it ended if it did not end well."""
    command = [sys.executable, __file__, "--part", part, "--tokens", str(args.tokens)]
    command += ["--dtype", args.dtype, "--decode", str(args.decode)]
    done = subprocess.run(command, capture_output=True, text=True)
    figures: dict[str, Any] = {"survived": done.returncode == 0}
    for line in done.stdout.splitlines():
        figures |= json.loads(line)
    if done.returncode:
        figures["exit_status"] = done.returncode
        figures["last_words"] = (done.stderr.strip().splitlines() or ["none"])[-1]
    return figures


def dense_bytes(tokens: int, dtype: str) -> dict[str, int]:
    """What mlx-lm's KVCache takes for the same tokens, from its code: arrays of whole 256-token
    steps, and, when one is full, a longer one beside it into which it is copied."""
    row = KV_HEADS * DIM * np.dtype(dtype).itemsize  # of one array of one layer
    before = 2 * LAYERS * row * math.ceil(tokens / 256) * 256
    after = 2 * LAYERS * row * math.ceil((tokens + 1) / 256) * 256
    return {
        "steady": after,
        "growing_one_array_at_a_time": after + before // (2 * LAYERS),
        "growing_all_arrays_in_one_graph": before + after,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16"])
    parser.add_argument("--decode", type=int, default=4)
    parser.add_argument("--part", choices=["pages", "own-cache"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        resource.setrlimit(resource.RLIMIT_AS, (BUDGET, BUDGET))
        part = on_pages if args.part == "pages" else on_own_cache
        print(json.dumps(part(args.tokens, args.dtype, args.decode)))
        return

    figures: dict[str, Any] = {
        "model": CONFIG,
        "weights": "random, 4 bits in groups of 64",
        "kv_dtype": args.dtype,
        "context_tokens": args.tokens,
        "budget_bytes": BUDGET,
    }
    pages = figures["pages"] = run_limited("pages", args)
    print(json.dumps(pages, indent=1), flush=True)
    if not pages["survived"]:
        sys.exit(f"Pages did not survive a limit of {BUDGET:,} bytes.")
    figures["share_of_budget"] = round(pages["at_the_end"]["peak_resident_bytes"] / BUDGET, 4)
    figures["mlx_lm_cache_needs_bytes"] = dense_bytes(args.tokens, args.dtype)
    own = figures["mlx_lm_cache"] = run_limited("own-cache", args)
    print(json.dumps(own, indent=1), flush=True)
    if own["survived"]:
        figures["same_tokens"] = own["tokens"] == pages["tokens"]
    for key in ("share_of_budget", "mlx_lm_cache_needs_bytes", "same_tokens"):
        print(f"{key}: {figures.get(key)}")

    from record import write_result

    write_result(
        "long_context",
        "a long context on pages and on mlx-lm's cache under a limit of address space",
        f"python bench/long_context.py --tokens {args.tokens} --dtype {args.dtype} "
        f"--decode {args.decode}",
        figures,
    )


if __name__ == "__main__":
    main()
