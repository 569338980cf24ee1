"""The Metal shaders on an NVIDIA GPU: are they right, and how fast do they read pages there?

    python bench/metal_on_cuda.py                      checks and measures; needs clang and the GPU
    python bench/metal_on_cuda.py --prepare DIR        translates, where there is no GPU
    python bench/metal_on_cuda.py --run DIR            checks and measures what DIR holds
    python bench/metal_on_cuda.py --sanitize racecheck --run DIR

The .metal files are compiled as they are, through bench/metal_cuda. Every specialisation is held
against float64 attention, or against the bytes that it should move; the decode kernels are then
timed beside a contiguous attention (torch's, in its better layout) and a plain copy, in turns, by
medians. --sanitize runs some of the checks under compute-sanitizer. Needs torch and cupy on the
GPU's machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]
RESULTS = HERE / "results" / "metal_on_cuda.json"


def prepare(folder: Path) -> None:
    from metal import page_moves
    from metal_cuda import cases
    from metal_cuda.prepared import prepare as write

    shapes = [shape for run in cases.runs() for shape in (run.shape(), *run.launches())]
    shapes += [move.shape for move in page_moves.moves()]
    write(folder, shapes + cases.speed_shapes())


def check(folder: Path, every: int, kernels: list[str]) -> dict[str, Any]:
    """Runs every `every`-th check; how many there were of each kernel, and the largest error.

    Args:
        kernels: By name; none: all.
    """
    from metal import page_moves
    from metal_cuda import cases, checks, device
    from metal_cuda.prepared import NO_LIMITS, Prepared

    from pamx.native.launch import Kernel

    prepared = Prepared(folder)
    programs = checks.OnCuda(prepared)

    def name_of(kernel: Kernel) -> str:
        return kernel.name.lower()

    runs = [run for run in cases.runs() if not kernels or name_of(run.kernel) in kernels][::every]
    moves = [m for m in page_moves.moves() if not kernels or name_of(m.shape.kernel) in kernels]
    moves = moves[::every]
    began = time.perf_counter()
    shapes = [shape for run in runs for shape in run.launches()] + [move.shape for move in moves]
    wanted = [(prepared.launch_of(shape), NO_LIMITS) for shape in shapes]
    prepared.compile_all(wanted, device.architecture(), os.cpu_count() or 1)
    print(f"compiled in {time.perf_counter() - began:.0f} s", file=sys.stderr)

    counts: Counter[str] = Counter()
    worst: dict[str, float] = {}
    failed = []
    for run in runs:
        name = name_of(run.kernel)
        counts[name] += 1
        try:
            error = programs.error_of(run)
        except AssertionError as problem:
            failed.append(f"{run}: {problem}")
            continue
        worst[name] = max(worst.get(name, 0.0), error)
        if not error <= 1:
            failed.append(f"{run}: {error:.2f} times what is allowed")
    for move in moves:
        counts[name_of(move.shape.kernel)] += 1
        try:
            programs.check_move(move)
        except AssertionError as problem:
            failed.append(f"{move.shape}: {problem}")
    for line in failed:
        print(f"wrong: {line}", file=sys.stderr)
    return {
        "runs": dict(counts),
        "specialisations": len(programs.loaded),
        "largest_error_over_allowed": {name: round(value, 3) for name, value in worst.items()},
        "failed": failed,
    }


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    import torch
    from metal_cuda import cases, speed
    from metal_cuda.prepared import Prepared

    prepared = Prepared(folder)
    speed.compile_all(prepared)
    decodes = []
    for decode in cases.DECODES:
        decodes.append(speed.measure_decode(prepared, decode, rounds))
        torch.cuda.empty_cache()
        print(json.dumps(decodes[-1]), file=sys.stderr)
    prefills = [speed.measure_prefill(prepared, prefill, rounds) for prefill in cases.PREFILLS]
    return {"decode": decodes, "prefill": prefills}


def table(figures: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        f"{figures['gpu']}, medians, TB/s of keys and values (percent of contiguous attention)",
        "",
        "| sequences x tokens | (heads, KV heads, size) | type | contiguous | group-sharing, P=512 "
        "| P=256 | per head | copy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in figures["decode"]:
        rates, shares = row["tb_per_s"], row["of_contiguous"]
        contiguous = max(rates["contiguous_token_major"], rates["contiguous_head_major"])
        cells = [f"{rates[n]:.2f} ({shares[n]:.0%})" for n in shares]
        lines.append(
            f"| {row['sequences']} x {row['context']:,} | {tuple(row['geometry'])} "
            f"| {row['dtype']} | {contiguous:.2f} | {' | '.join(cells)} | {rates['copy']:.2f} |"
        )
    lines += ["", "| prefill, tokens | geometry | contiguous TFLOP/s | prefill_tiled |"]
    lines += ["|---|---|---|---|"]
    for row in figures["prefill"]:
        rates = row["tflop_per_s"]
        lines.append(
            f"| {row['tokens']:,} | {tuple(row['geometry'])} | {rates['contiguous']:.1f} "
            f"| {rates['tiled']:.1f} |"
        )
    return "\n".join(lines)


def sanitize(tool: str, folder: Path, every: int, kernels: list[str]) -> int:
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    command += ["--kernel-regex-exclude", "kns=at::"] if tool == "racecheck" else []
    command += [sys.executable, __file__, "--run", str(folder), "--only", "check"]
    command += ["--every", str(every), *(["--kernels", *kernels] if kernels else [])]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="translate into DIR and stop")
    parser.add_argument("--run", type=Path, metavar="DIR", help="use what DIR holds")
    parser.add_argument("--only", choices=("check", "speed"))
    parser.add_argument("--every", type=int, default=1, help="take every n-th check")
    parser.add_argument("--kernels", nargs="+", default=[], help="check these alone")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sanitize", choices=("memcheck", "racecheck", "synccheck"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.run or Path(temporary)
        if not options.run:
            prepare(folder)
        if options.sanitize:
            return sanitize(options.sanitize, folder, options.every, options.kernels)
        return report(folder, options)


def report(folder: Path, options: argparse.Namespace) -> int:
    import torch

    figures: dict[str, Any] = {
        "what": "the shaders of shaders/ on an NVIDIA GPU through bench/metal_cuda",
        "command": "python bench/metal_on_cuda.py",
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    if options.only != "speed":
        figures["checks"] = check(folder, options.every, options.kernels)
        print(json.dumps(figures["checks"] | {"failed": len(figures["checks"]["failed"])}))
    if options.only != "check":
        figures |= measure(folder, options.rounds)
        print(table(figures))
    if not options.only and options.every == 1 and not options.kernels:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if figures.get("checks", {}).get("failed") else 0


if __name__ == "__main__":
    raise SystemExit(main())
