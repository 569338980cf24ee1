"""What a decoding step costs on the host: Python's share of its wall time, and where it goes.

    python bench/step_overhead.py [--steps 30] [--sequences 16]

The default model decodes 16 sequences with short contexts. The engine's own functions are wrapped
by timers that count each moment once, for the innermost of them, so the parts add up to the
steps' wall time. "Overhead" is the scheduler, the step's tables, taking in the tokens, and the
text; building the model's lazy graph is told apart, since mlx-lm's loop does that too. All of it
but taking in and the text runs while the device computes the step before. "Queueing" is mostly
waiting: MLX holds the host back there while the device has enough to do. Greedy and with top-p
sampling. Writes bench/results/step_overhead.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from record import write_result

import pamx
from pamx.attention.step import Step
from pamx.engine import batch as batch_module
from pamx.engine.batch import BatchEngine
from pamx.engine.request import Request
from pamx.engine.sampling import Sampling
from pamx.engine.scheduler import Scheduler
from pamx.engine.text import TextStream
from pamx.substitute.paged_model import PagedModel

OVERHEAD = ("scheduler", "step tables", "taking in tokens", "text", "rest of the loop")
SAMPLINGS = {
    "greedy": Sampling(),
    "top-p": Sampling(temperature=0.8, top_p=0.95, seed=1),
}


class Timer:
    """Wall time by part; a nested part's time is not its caller's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._stack.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._stack.pop()

        return timed

    def install(self) -> None:
        """Wraps the engine's functions for the rest of this process."""
        for owner, name, part in (
            (Scheduler, "schedule", "scheduler"),
            (Scheduler, "settle", "scheduler"),
            (Scheduler, "finish", "scheduler"),
            (Step, "__init__", "step tables"),
            (BatchEngine, "_inputs", "step tables"),
            (BatchEngine, "_draw", "sampling graph"),
            (BatchEngine, "_settle", "taking in tokens"),
            (BatchEngine, "step", "rest of the loop"),
            (PagedModel, "forward", "model graph"),
            (TextStream, "add", "text"),
            (TextStream, "finish", "text"),
            (mx, "async_eval", "queueing"),
        ):
            setattr(owner, name, self.wrap(part, getattr(owner, name)))
        for name in ("native", "positions"):
            tables = vars(Step)[name]
            tables.func = self.wrap("step tables", tables.func)
        settle, wait = BatchEngine._settle, self.wrap("waiting", mx.eval)

        def settle_after_waiting(engine: BatchEngine) -> list[batch_module.Output]:
            if engine._running is not None:
                wait(engine._running.tokens)
            return settle(engine)

        BatchEngine._settle = settle_after_waiting  # type: ignore[method-assign]


def measure(engine: pamx.Engine, timer: Timer, sampling: Sampling, args: Any) -> dict[str, Any]:
    warm = 4
    with engine.batch(max_seqs=args.sequences, prefix_cache=True) as batch:
        for number in range(args.sequences):
            prompt = [1 + number, 504, 260, 3575, 282, 1 + number]
            limit = args.steps + 2 * warm
            batch.submit(Request(str(number), prompt, max_tokens=limit, sampling=sampling))
        for _ in range(warm):
            batch.step()
        timer.seconds.clear()
        tokens = 0
        begin = time.perf_counter()
        for _ in range(args.steps):
            tokens += sum(output.token is not None for output in batch.step())
        wall = time.perf_counter() - begin
        parts = dict(timer.seconds)
    return {
        "steps": args.steps,
        "tokens": tokens,
        "ms_a_step": round(wall / args.steps * 1e3, 2),
        "overhead_share": round(sum(parts.get(p, 0.0) for p in OVERHEAD) / wall, 5),
        "overhead_ms_a_step": round(sum(parts.get(p, 0.0) for p in OVERHEAD) / args.steps * 1e3, 3),
        "ms_a_step_by_part": {
            part: round(seconds / args.steps * 1e3, 3)
            for part, seconds in sorted(parts.items(), key=lambda item: -item[1])
        },
        "share_by_part": {
            part: round(seconds / wall, 5)
            for part, seconds in sorted(parts.items(), key=lambda item: -item[1])
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sequences", type=int, default=16)
    args = parser.parse_args()
    timer = Timer()
    timer.install()
    figures: dict[str, Any] = {"model": "smollm2-135m", "sequences": args.sequences}
    with pamx.load(context=4096) as engine:
        engine.tokenizer.eos_token_ids = []  # so that every sequence decodes all the while
        for name, sampling in SAMPLINGS.items():
            figures[name] = measure(engine, timer, sampling, args)
            print(name, json.dumps(figures[name], indent=1), flush=True)
    write_result(
        "step_overhead",
        "host time of a decoding step by part, default model",
        f"python bench/step_overhead.py --steps {args.steps} --sequences {args.sequences}",
        figures,
    )


if __name__ == "__main__":
    main()
