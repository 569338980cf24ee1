"""The pool is written in place: memory does not grow, and a step's time ignores the pool's size.

    python bench/pool_in_place.py [--steps 2000] [--rounds 20]

First, 2,000 one-token steps on a pool of 1 GB, each written into the pool and attended from it;
the peak of MLX's memory and of the process's resident memory is compared with their values before
the steps, all pages having been touched. Then steps on pools from 16 MB to 1 GB, interleaved in
short rounds, each round's time taken relative to the smallest pool in the same round. Writes
bench/results/pool_in_place.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import mlx.core as mx

from pamx.attention.layer import PagedAttentionLayer
from pamx.attention.step import SequenceSlice
from pamx.native import library

RESULT = Path(__file__).parent / "results" / "pool_in_place.json"
BLOCK_SIZE, HEADS, KV_HEADS, DIM = 16, 8, 2, 64
BLOCK_BYTES = 2 * BLOCK_SIZE * KV_HEADS * DIM * 4
SIZES_MB = (16, 128, 1024)


class Arm:
    """One pool and a sequence that decodes in it."""

    def __init__(self, megabytes: int) -> None:
        self.blocks = (megabytes << 20) // BLOCK_BYTES
        self.layer = PagedAttentionLayer(
            num_blocks=self.blocks, block_size=BLOCK_SIZE, kv_heads=KV_HEADS, head_dim=DIM
        )
        pool = self.layer.pool
        # Written memory in place of untouched, so that growth cannot hide in first touches.
        pool.keys, pool.values = mx.zeros(pool.keys.shape), mx.zeros(pool.values.shape)
        mx.eval(pool.keys, pool.values)
        self.rows = [mx.random.normal((1, h, DIM)) for h in (HEADS, KV_HEADS, KV_HEADS)]
        mx.eval(self.rows)

    def steps(self, count: int) -> float:
        """Seconds a step: token t at position t, in blocks that are spread over the pool."""
        stride = self.blocks // (count // BLOCK_SIZE + 1)
        table = [i * stride for i in range(count // BLOCK_SIZE + 1)]
        begin = time.perf_counter()
        for t in range(count):
            part = SequenceSlice(table[: t // BLOCK_SIZE + 1], t + 1, 1)
            mx.eval(self.layer(*self.rows, [part]))
        return (time.perf_counter() - begin) / count


def resident_peak() -> int:
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()

    arm = Arm(1024)
    arm.steps(50)
    mx.clear_cache()
    mx.reset_peak_memory()
    active, resident = mx.get_active_memory(), resident_peak()
    arm.steps(args.steps)
    memory = {
        "pool_bytes": arm.blocks * BLOCK_BYTES,
        "steps": args.steps,
        "mlx_peak_growth": (mx.get_peak_memory() - active) / active,
        "resident_peak_growth": (resident_peak() - resident) / resident,
    }
    print(json.dumps(memory))
    del arm

    arms = {size: Arm(size) for size in SIZES_MB}
    for warm in arms.values():
        warm.steps(50)
    ratios: dict[int, list[float]] = {size: [] for size in SIZES_MB}
    micros: dict[int, list[float]] = {size: [] for size in SIZES_MB}
    for number in range(args.rounds):
        order = SIZES_MB if number % 2 else SIZES_MB[::-1]
        seconds = {size: arms[size].steps(100) for size in order}
        for size in SIZES_MB:
            ratios[size].append(seconds[size] / seconds[SIZES_MB[0]])
            micros[size].append(seconds[size] * 1e6)
    times = {
        f"{size} MB": {
            "median_us_a_step": round(statistics.median(micros[size]), 1),
            f"median_ratio_to_{SIZES_MB[0]}_MB": round(statistics.median(ratios[size]), 3),
        }
        for size in SIZES_MB
    }
    print(json.dumps(times))
    native = library()
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(
        json.dumps(
            {
                "what": "one-token attention steps that write into the block pool",
                "command": f"python bench/pool_in_place.py --steps {args.steps} "
                f"--rounds {args.rounds}",
                "geometry": {"heads": HEADS, "kv_heads": KV_HEADS, "dim": DIM, "dtype": "float32"},
                "cpu_isa": native.cpu_isa,
                "build_hash": native.build_hash,
                "mlx": native.mlx_loaded,
                "machine": f"{platform.system()} {platform.machine()}",
                "memory": memory,
                "times": times,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
