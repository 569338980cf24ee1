"""Plain mlx-lm on dense float32 weights, with MLX's own BLAS and with the one that pamx gives it.

    python bench/dense_blas.py [--rounds 4] [--prompt 256] [--tokens 16]

The default model's weights, expanded to float32, run in mlx-lm's own layers and cache: pamx takes
part only by what it loads before MLX. Each arm is a process of its own, the arms take turns
forwards and backwards, and a ratio compares the two of one round. "gemm" is one product of a
layer's shape, "head" one row times the output matrix. Writes bench/results/dense_blas.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pamx.models  # before mlx.core: only then can MLX have another BLAS
from pamx.native import library

ARMS = {"own": "0", "openblas": "1"}
MEASURES = ("gemm_gflops", "head_gflops", "prefill_tokens_per_second", "decode_tokens_per_second")


def fastest(work: Callable[[], Any], times: int) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def measure(prompt: int, tokens: int) -> dict[str, float]:
    """One arm, in this process."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models.cache import make_prompt_cache

    library()  # its worker pool shares out the products
    mx.set_default_device(mx.cpu)
    model = pamx.models.load(progress=False).model

    def dense(_: str, module: nn.Module) -> nn.Module:
        if not isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return module
        weight = mx.dequantize(
            module.weight, module.scales, module.biases, module.group_size, module.bits
        ).astype(mx.float32)
        made: nn.Module = (
            nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            if isinstance(module, nn.QuantizedLinear)
            else nn.Embedding(*weight.shape)
        )
        made.weight = weight
        return made

    from mlx.utils import tree_map_with_path

    model.update_modules(
        tree_map_with_path(dense, model.leaf_modules(), is_leaf=nn.Module.is_module)
    )
    mx.eval(model.parameters())

    def product(m: int, n: int, k: int) -> float:
        x, w = mx.random.normal((m, k)), mx.random.normal((n, k))
        mx.eval(x, w, x @ w.T)
        return 2 * m * n * k / fastest(lambda: mx.eval(x @ w.T), 5) / 1e9

    ids = mx.arange(100, 100 + prompt)[None]
    cache = make_prompt_cache(model)

    def prefill() -> None:
        cache[:] = make_prompt_cache(model)
        mx.eval(model(ids, cache=cache))

    def decode() -> None:
        for _ in range(tokens):
            mx.eval(model(ids[:, :1], cache=cache))

    return {
        "gemm_gflops": product(512, 1536, 576),
        "head_gflops": product(1, 49_152, 576),
        "prefill_tokens_per_second": prompt / fastest(prefill, 2),
        "decode_tokens_per_second": tokens / fastest(decode, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.prompt, args.tokens)))
        return

    options = ["--prompt", str(args.prompt), "--tokens", str(args.tokens)]
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for number in range(args.rounds):
        for arm in list(ARMS) if number % 2 == 0 else list(ARMS)[::-1]:
            done = subprocess.run(
                [sys.executable, __file__, "--one", *options],
                env={**os.environ, "PAMX_BLAS": ARMS[arm]},
                stdout=subprocess.PIPE,
                check=True,
            )
            found[arm].append(json.loads(done.stdout))
            print(arm, found[arm][-1], flush=True)

    from record import write_result

    from pamx.native.blas import install

    ratios = {
        name: [
            ours[name] / theirs[name]
            for ours, theirs in zip(found["openblas"], found["own"], strict=True)
        ]
        for name in MEASURES
    }
    figures = {
        "openblas": install().version,
        "median": {
            arm: {name: round(statistics.median(r[name] for r in runs), 2) for name in MEASURES}
            for arm, runs in found.items()
        },
        "times_as_fast": {
            name: {
                "median": round(statistics.median(values), 2),
                "min": round(min(values), 2),
                "max": round(max(values), 2),
            }
            for name, values in ratios.items()
        },
    }
    print(json.dumps(figures, indent=1))
    write_result(
        "dense_blas",
        "plain mlx-lm on dense float32 weights, MLX's own BLAS against OpenBLAS through pamx",
        f"python bench/dense_blas.py --rounds {args.rounds} --prompt {args.prompt} "
        f"--tokens {args.tokens}",
        figures,
    )


if __name__ == "__main__":
    main()
