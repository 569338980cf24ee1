"""Linear layers on packed weights against MLX's quantised product, in one process.

    python bench/linear_speed.py [--rounds 5]

For a few shapes: one row (gigabytes of weights read a second), and 16 and 512 rows (billions of
multiplications a second), in `fast` and in `exact`, beside `mx.quantized_matmul` on the same
weights. The arms take turns within a round, each runs for a while and keeps its best time, and
the ratio printed is the median over rounds. mlx runs with few rows only, for it is slow. Writes
bench/results/linear_speed.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import mlx.core as mx
from record import write_result

from pamx.native import library
from pamx.native.matrices import Compute, Matrix, MatrixFormat, Memory, linear, pack

# outputs, inputs: SmolLM2-135M's gate and up, its down, its head; a layer of 7B size.
SHAPES = ((3072, 576), (576, 1536), (49152, 576), (4096, 4096))
BITS, GROUP_SIZE = 4, 32
ROWS = (1, 16, 512)
MOST_MLX_ROWS = 16


def best_seconds(work: Callable[[], mx.array], at_least: float) -> float:
    best, end = float("inf"), time.perf_counter() + at_least
    while True:
        begin = time.perf_counter()
        mx.eval(work())
        now = time.perf_counter()
        best = min(best, now - begin)
        if now > end:
            return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    figures: dict[str, dict[str, float]] = {}
    for outputs, inputs in SHAPES:
        weights = mx.random.normal((outputs, inputs)).astype(mx.float16)
        arrays = mx.quantize(weights, group_size=GROUP_SIZE, bits=BITS)
        words, scales, biases = arrays
        matrix_format = MatrixFormat.of(words, scales, bits=BITS, group_size=GROUP_SIZE)
        memory = Memory.allocate(matrix_format.nbytes)
        pack(matrix_format, words, scales, biases, memory)
        matrix = Matrix(matrix_format, memory)
        wide = [a.astype(mx.float32) for a in (scales, biases)]
        mx.eval(words, wide)
        for rows in ROWS:
            x = mx.random.normal((rows, inputs))
            mx.eval(x)

            def ours(compute: Compute, x: mx.array = x, matrix: Matrix = matrix) -> mx.array:
                return linear(matrix, x, compute)

            def mlx(
                x: mx.array = x, words: mx.array = words, wide: list[mx.array] = wide
            ) -> mx.array:
                return mx.quantized_matmul(x, words, *wide, group_size=GROUP_SIZE, bits=BITS)

            arms: dict[str, Callable[[], mx.array]] = {
                "fast": lambda: ours("fast"),
                "exact": lambda: ours("exact"),
            }
            if rows <= MOST_MLX_ROWS:
                arms["mlx"] = mlx
            seconds: dict[str, list[float]] = {name: [] for name in arms}
            for _ in range(args.rounds):
                for name, work in arms.items():
                    seconds[name].append(best_seconds(work, 0.1))
            line: dict[str, float] = {}
            for name in ("fast", "exact"):
                best = min(seconds[name])
                line[f"{name}_us"] = round(best * 1e6, 1)
                if rows == 1:
                    line[f"{name}_GB_per_s"] = round(matrix_format.nbytes / best / 1e9, 1)
                line[f"{name}_GMAC_per_s"] = round(outputs * inputs * rows / best / 1e9, 1)
                if "mlx" in arms:
                    pairs = zip(seconds["mlx"], seconds[name], strict=True)
                    line[f"{name}_times_mlx"] = round(statistics.median(a / b for a, b in pairs), 1)
            label = f"{outputs} x {inputs}, {rows} row{'s' if rows > 1 else ''}"
            figures[label] = line
            print(label, json.dumps(line), flush=True)
    write_result(
        "linear_speed",
        f"linear layers, {BITS} bit in groups of {GROUP_SIZE}, float16 scales, float32 activations",
        f"python bench/linear_speed.py --rounds {args.rounds}",
        {"threads": library().lib.pamx_num_threads(), "shapes": figures},
    )


if __name__ == "__main__":
    main()
