"""Tokens a second with many requests at once: pamx's batch engine against mlx-lm's.

    python bench/batch_throughput.py [--requests 64] [--rounds 4] [--prefix-rounds 2]

The same greedy requests, without stop tokens, go through `BatchEngine` and through
`mlx_lm.batch_generate`, in one process and on the same float32 weights: a random llama. mlx-lm runs
once with the same number of sequences at a time (16) and once with its defaults (32, eight prompts
at a time). Rounds run the arms forwards and backwards in turn, and times are compared within a
round. Three settings: mixed lengths, where mlx-lm computes padding; equal lengths, where it needs
none; and mixed lengths after one prefix that all prompts share. In reading prompts mlx-lm leaves
out what the last layer does after its cache, which counts with as few layers as here; pamx's steps,
in which some rows choose tokens, compute it. pamx's prefix cache is on throughout. mlx-lm's callers
could compute the prefix first and pass caches of it, which this does not do. Before any figure, the
tokens are compared; near ties may fall the other way, and the requests where one does are counted.
Writes bench/results/batch_throughput.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm import batch_generate
from mlx_lm.models import llama
from mlx_lm.tokenizer_utils import load as load_tokenizer
from record import write_result

import pamx.models
from pamx.engine.batch import BatchEngine
from pamx.engine.request import Request
from pamx.substitute.paged_model import PagedModel

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
LONGEST_PROMPT, CONTEXT, POOL = 600, 4096, 49_152
ARMS = ("pamx", "mlx-lm, 16 at a time", "mlx-lm, its defaults")
Job = tuple[list[int], int]  # prompt, tokens to answer


def random_llama() -> Module:
    """Random weights under which every token matters."""
    mx.random.seed(11)
    model: Module = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    weights = [
        (name, value + mx.random.normal(value.shape) * (0.05 if value.ndim > 1 else 0.2))
        for name, value in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    return model


def make_jobs(count: int, prefix: int, mixed: bool) -> list[Job]:
    rng = random.Random(7)

    def tokens(length: int) -> list[int]:
        return [rng.randrange(3, CONFIG["vocab_size"]) for _ in range(length)]

    sizes = [(int(LONGEST_PROMPT ** rng.random()), rng.randint(8, 48)) for _ in range(count)]
    if not mixed:  # all take the mean
        sizes = [(sum(p for p, _ in sizes) // count, sum(a for _, a in sizes) // count)] * count
    shared = tokens(prefix)
    return [([*shared, *tokens(prompt)], answer) for prompt, answer in sizes]


class Bench:
    """The arms over the same weights."""

    def __init__(self, max_seqs: int) -> None:
        self.max_seqs = max_seqs
        self.model = random_llama()
        paged_model: Module = llama.Model(llama.ModelArgs.from_dict(CONFIG))
        paged_model.update(self.model.parameters())
        self.paged = PagedModel(paged_model, context=POOL)
        self.tokenizer = load_tokenizer(pamx.models.fetch())
        self.tokenizer.eos_token_ids = []
        self.stats: dict[str, int] = {}

    def answer(self, arm: str, jobs: list[Job]) -> tuple[float, list[list[int]]]:
        """Seconds, and each request's tokens."""
        mx.clear_cache()
        begin = time.perf_counter()
        tokens = self._pamx(jobs) if arm == "pamx" else self._mlx_lm(arm, jobs)
        return time.perf_counter() - begin, tokens

    def _pamx(self, jobs: list[Job]) -> list[list[int]]:
        done = {}
        with BatchEngine(self.paged, self.tokenizer, CONTEXT, max_seqs=self.max_seqs) as batch:
            for number, (prompt, limit) in enumerate(jobs):
                batch.submit(Request(str(number), prompt, max_tokens=limit))
            while batch.has_work:
                for output in batch.step():
                    if output.completion:
                        done[int(output.request_id)] = output.completion.tokens
            stats = batch.stats()
        self.stats = {
            "steps": stats.steps,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "preemptions": stats.preemptions,
        }
        return [done[number] for number in range(len(jobs))]

    def _mlx_lm(self, arm: str, jobs: list[Job]) -> list[list[int]]:
        options = {} if arm == ARMS[2] else {"completion_batch_size": self.max_seqs}
        prompts, limits = (list(column) for column in zip(*jobs, strict=True))
        response = batch_generate(
            self.model,
            self.tokenizer,
            prompts,
            max_tokens=limits,
            return_token_ids=True,
            **options,
        )
        return [list(ids) for ids in response.token_ids]


def measure(bench: Bench, jobs: list[Job], rounds: int) -> dict[str, Any]:
    answer_tokens = sum(limit for _, limit in jobs)
    warm = [(prompt[:40], 4) for prompt, _ in jobs[:20]]
    for arm in ARMS:
        bench.answer(arm, warm)
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    first: dict[str, list[list[int]]] = {}
    for number in range(rounds):
        for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
            took, tokens = bench.answer(arm, jobs)
            seconds[arm].append(took)
            if tokens != first.setdefault(arm, tokens):
                sys.exit(f"{arm}: round {number + 1} gave other tokens than the first.")
            print(f"  round {number + 1}: {arm}: {took:.1f} s", flush=True)
    wrong = [a for a in ARMS if [len(t) for t in first[a]] != [limit for _, limit in jobs]]
    differ = {
        arm: sum(a != b for a, b in zip(first["pamx"], first[arm], strict=True)) for arm in ARMS[1:]
    }
    if wrong or max(differ.values()) > len(jobs) // 10:
        sys.exit(f"The arms do not do the same work: lengths wrong in {wrong}, differ: {differ}.")
    ratios = {
        arm: [theirs / ours for ours, theirs in zip(seconds["pamx"], seconds[arm], strict=True)]
        for arm in ARMS[1:]
    }
    return {
        "requests": len(jobs),
        "prompt_tokens": sum(len(prompt) for prompt, _ in jobs),
        "answer_tokens": answer_tokens,
        "pamx_stats": bench.stats,
        "tokens_per_second": {
            arm: round(answer_tokens / statistics.median(seconds[arm]), 1) for arm in ARMS
        },
        "seconds": {arm: [round(s, 2) for s in seconds[arm]] for arm in ARMS},
        "pamx_times_as_fast_as": {
            arm: {
                "median": round(statistics.median(r), 3),
                "min": round(min(r), 3),
                "max": round(max(r), 3),
            }
            for arm, r in ratios.items()
        },
        "requests_that_differ": differ,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--prefix-rounds", type=int, default=2)
    parser.add_argument("--prefix", type=int, default=1000)
    parser.add_argument("--max-seqs", type=int, default=16)
    args = parser.parse_args()

    bench = Bench(args.max_seqs)
    figures: dict[str, Any] = {"model": {**CONFIG, "dtype": "float32"}, "max_seqs": args.max_seqs}
    for name, prefix, mixed, rounds in (
        ("mixed_lengths", 0, True, args.rounds),
        ("equal_lengths", 0, False, args.rounds),
        (f"shared_prefix_of_{args.prefix}", args.prefix, True, args.prefix_rounds),
    ):
        if rounds:
            print(name, flush=True)
            figures[name] = measure(bench, make_jobs(args.requests, prefix, mixed), rounds)
            print(json.dumps(figures[name], indent=1), flush=True)
    bench.paged.close()
    write_result(
        "batch_throughput",
        "greedy requests of mixed lengths, pamx's BatchEngine against mlx_lm.batch_generate",
        f"python bench/batch_throughput.py --requests {args.requests} --rounds {args.rounds} "
        f"--prefix-rounds {args.prefix_rounds} --prefix {args.prefix} --max-seqs {args.max_seqs}",
        figures,
    )


if __name__ == "__main__":
    main()
