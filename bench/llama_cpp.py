"""pamx against llama.cpp and plain mlx-lm on a CPU: the same GGUF weights, threads and work.

    python bench/llama_cpp.py [--rounds 4] [--threads 2] [--llama-cpp FOLDER] [--only decode,...]
    python bench/llama_cpp.py --second      # a random model of another family, 1B parameters

bench/peer.py says how to build llama.cpp's tools. The arms take turns in each round, forwards and
backwards; every ratio compares two figures of one round. Before each figure the script waits, at
most --patience seconds, until other programs leave the CPUs alone, and keeps the worst it had to
accept: llama.cpp's threads spin, so that it loses most on a busy machine.

decode        one sequence behind a context, greedy. pamx: `Engine.stream`, from the first token of
              the answer to the last, behind a prompt that it has read into its pages. llama-bench
              -d. The deepest context is the model's, less what is generated.
prefill       reading a prompt. pamx: `Engine.stream` to the first token. llama-bench -p.
together      16 sequences of 128 tokens decode at once. pamx: `Engine.batch`, from the step that
              follows every sequence's first token. llama-batched-bench, its S_TG.
batch         64 requests of mixed lengths: the whole command `pamx generate --batch`, start-up
              included, against the call of `mlx_lm.batch_generate` alone.

mlx-lm is too slow for all of this. It decodes --mlx-lm-tokens tokens, behind a context of random
keys and values; it reads prompts of at most --mlx-lm-prefill tokens; of the batch it answers every
fourth request, and the ratio is to pamx's time for those same requests. Writes
bench/results/llama_cpp.json or llama_cpp_second.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import random_gguf
from peer import LlamaCpp, default_gguf, wait_for_quiet

import pamx
from pamx.engine.request import Request

PARTS = ("decode", "prefill", "together", "batch")
DEPTHS, PROMPTS = (128, 1024, 4096, 8192), (512, 2048)
TOKENS = 64
SEQUENCES, EACH_PROMPT, EACH_TOKENS = 16, 128, 32
REQUESTS, MLX_LM_TAKES_EVERY = 64, 4
HERE = Path(__file__).parent


class Pamx:
    """pamx through its public interface."""

    def __init__(self, gguf: Path, options: dict[str, Any]) -> None:
        self.engine = pamx.load(str(gguf), **options)
        self.engine.tokenizer.eos_token_ids = []  # so that no answer ends early
        self._rng = random.Random(1)

    def _prompt(self, tokens: int) -> list[int]:
        return [self._rng.randrange(3, 40_000) for _ in range(tokens)]

    def prefill(self, tokens: int) -> float:
        prompt = self._prompt(tokens)
        begin = time.perf_counter()
        for delta in self.engine.stream(prompt, max_tokens=1):
            if delta.token is not None:
                break
        return tokens / (time.perf_counter() - begin)

    def decode(self, depth: int, tokens: int) -> float:
        times = [
            time.perf_counter()
            for delta in self.engine.stream(self._prompt(depth), max_tokens=tokens + 1)
            if delta.token is not None
        ]
        assert len(times) == tokens + 1
        return tokens / (times[-1] - times[0])

    def decode_together(self, sequences: int, prompt: int, tokens: int) -> float:
        with self.engine.batch(max_seqs=sequences, prefix_cache=False) as batch:
            for number in range(sequences):
                limit = self.engine.context // sequences - prompt
                batch.submit(Request(str(number), self._prompt(prompt), max_tokens=limit))
            begun: set[str] = set()
            while len(begun) < sequences:
                begun |= {o.request_id for o in batch.step() if o.token is not None}
            made, begin = 0, time.perf_counter()
            while made < sequences * tokens:
                made += sum(o.token is not None for o in batch.step())
            return made / (time.perf_counter() - begin)


class MlxLm:
    """Plain mlx-lm, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(HERE / "mlx_lm_arm.py"), str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *request: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(request), file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            sys.exit("mlx-lm's process ended; its own words are above.")
        return json.loads(line)

    def prefill(self, tokens: int) -> float:
        return float(self.ask("prefill", tokens))

    def decode(self, depth: int, tokens: int) -> float:
        return float(self.ask("decode", depth, tokens))


class Figures:
    """Tokens a second by measure and arm, one for each round."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.busiest = 0.0

    def take(self, number: int, name: str, arms: dict[str, Callable[[], float]]) -> None:
        """One round of a measure: each arm once, in turn."""
        for arm in list(arms) if number % 2 == 0 else list(arms)[::-1]:
            self.busiest = max(self.busiest, wait_for_quiet(self._patience))
            figure = arms[arm]()
            self._found[name][arm].append(figure)
            print(f"{name}: {arm}: {figure:.1f}", file=sys.stderr, flush=True)

    def summary(self) -> dict[str, Any]:
        return {
            name: {
                "median": {arm: round(statistics.median(f), 2) for arm, f in found.items()},
                "pamx_times_as_fast_as": {
                    arm: _ratios(found["pamx"], figures)
                    for arm, figures in found.items()
                    if arm != "pamx"
                },
            }
            for name, found in self._found.items()
        }


def _ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "median": round(statistics.median(ratios), 2),
        "min": round(min(ratios), 2),
        "max": round(max(ratios), 2),
    }


def requests(engine: pamx.Engine) -> list[dict[str, Any]]:
    """Rows of prompts of 1 to about 600 tokens and answers of 8 to 48, both mixed."""
    import pydoc_data.topics

    text = " ".join(pydoc_data.topics.topics["types"].split())
    ids = engine.tokenizer.encode(text)
    rng = random.Random(7)
    rows = []
    for number in range(REQUESTS):
        length = int(600 ** rng.random())
        start = rng.randrange(len(ids) - length)
        prompt = engine.tokenizer.decode(ids[start : start + length])
        rows.append({"custom_id": str(number), "prompt": prompt, "max_tokens": rng.randint(8, 48)})
    return rows


def run_batch(rows: list[dict[str, Any]], gguf: Path, options: dict[str, Any]) -> dict[str, float]:
    """Seconds of the whole command, and tokens generated."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "in.jsonl"), Path(scratch, "out.jsonl")
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [sys.executable, "-m", "pamx.cli", "generate", "--raw", "--model", str(gguf)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        begin = time.perf_counter()
        subprocess.run([*command, "--batch", str(source), "-o", str(target)], check=True)
        seconds = time.perf_counter() - begin
        results = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(results) == len(rows)
    return {"seconds": seconds, "tokens": sum(r["usage"]["completion_tokens"] for r in results)}


def measure_batch(
    arm: Pamx, mlx_lm: MlxLm, gguf: Path, options: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """All requests through pamx, and every fourth through both."""
    rows = requests(arm.engine)
    some = rows[::MLX_LM_TAKES_EVERY]
    all_of_them, ours, theirs = [], [], []
    for number in range(args.batch_rounds):
        wait_for_quiet(args.patience)
        turns: list[Callable[[], None]] = [
            lambda: all_of_them.append(run_batch(rows, gguf, options)),
            lambda: ours.append(run_batch(some, gguf, options)),
            lambda: theirs.append(
                mlx_lm.ask("batch", [r["prompt"] for r in some], [r["max_tokens"] for r in some])
            ),
        ]
        for turn in turns if number % 2 == 0 else turns[::-1]:
            turn()

    def rates(runs: list[dict[str, float]]) -> list[float]:
        return [run["tokens"] / run["seconds"] for run in runs]

    def figures(runs: list[dict[str, float]], count: int) -> dict[str, Any]:
        return {
            "requests": count,
            "answer_tokens": runs[0]["tokens"],
            "seconds": round(statistics.median(run["seconds"] for run in runs), 2),
            "tokens_per_second": round(statistics.median(rates(runs)), 2),
        }

    return {
        "pamx": figures(all_of_them, len(rows)),
        "every_fourth": {"pamx": figures(ours, len(some)), "mlx-lm": figures(theirs, len(some))},
        "pamx_times_as_fast_as_mlx_lm_on_every_fourth": _ratios(rates(ours), rates(theirs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch-rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-cpp", type=Path, help="the folder of llama.cpp's tools")
    parser.add_argument("--gguf", type=Path, help="a model; default: pamx's default model")
    parser.add_argument("--second", action="store_true", help="the random 1B model")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--depths", default=",".join(map(str, DEPTHS)), help="contexts of decode")
    parser.add_argument("--prompts", default=",".join(map(str, PROMPTS)), help="lengths of prefill")
    parser.add_argument("--compute", help="pamx's arithmetic; default: its own choice")
    parser.add_argument("--mlx-lm-tokens", type=int, default=8)
    parser.add_argument("--mlx-lm-prefill", type=int, default=512)
    parser.add_argument("--patience", type=float, default=60.0)
    args = parser.parse_args()
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only knows {', '.join(PARTS)}, not {', '.join(unknown)}")

    depths, prompts = ([int(n) for n in text.split(",")] for text in (args.depths, args.prompts))
    os.environ["PAMX_NUM_THREADS"] = str(args.threads)
    gguf = args.gguf or (random_gguf.write(random_gguf.FILE) if args.second else default_gguf())
    options = {} if args.compute is None else {"compute": args.compute}
    arm = Pamx(gguf, options)
    llama_cpp = LlamaCpp(args.llama_cpp, gguf, args.threads)
    mlx_lm = MlxLm(arm.engine.path)
    figures = Figures(args.patience)
    deepest = arm.engine.context - TOKENS - 1
    arm.prefill(64)
    arm.decode(16, 8)
    for number in range(args.rounds):
        for depth in depths if "decode" in parts else ():
            behind = min(depth, deepest)
            figures.take(
                number,
                f"decode behind {behind}",
                {
                    "llama.cpp": lambda d=behind: llama_cpp.decode(d, TOKENS),
                    "pamx": lambda d=behind: arm.decode(d, TOKENS),
                    "mlx-lm": lambda d=behind: mlx_lm.decode(d, args.mlx_lm_tokens),
                },
            )
        for length in prompts if "prefill" in parts else ():
            arms = {
                "llama.cpp": lambda n=length: llama_cpp.prefill(n),
                "pamx": lambda n=length: arm.prefill(n),
            }
            if length <= args.mlx_lm_prefill:
                arms["mlx-lm"] = lambda n=length: mlx_lm.prefill(n)
            figures.take(number, f"prefill {length}", arms)
        if "together" in parts:
            shape = (SEQUENCES, EACH_PROMPT, EACH_TOKENS)
            figures.take(
                number,
                f"{SEQUENCES} sequences decoding",
                {
                    "llama.cpp": lambda s=shape: llama_cpp.decode_together(*s),
                    "pamx": lambda s=shape: arm.decode_together(*s),
                },
            )
    result: dict[str, Any] = {
        "model": arm.engine.name,
        "threads": args.threads,
        "llama_cpp_build": llama_cpp.build,
        "compute": arm.engine.compute.mode,
        "rounds": args.rounds,
        "others_used_at_most_percent_of_the_cpus": figures.busiest,
        "tokens_per_second": figures.summary(),
    }
    if "batch" in parts:
        result["batch"] = measure_batch(arm, mlx_lm, gguf, options, args)
    arm.engine.close()
    print(json.dumps(result, indent=1))

    from record import write_result

    write_result(
        "llama_cpp_second" if args.second else "llama_cpp",
        "tokens a second on a CPU: pamx, llama.cpp and plain mlx-lm, same GGUF weights",
        " ".join(["python bench/llama_cpp.py", *_without_paths(sys.argv[1:])]),
        result,
    )


def _without_paths(words: list[str]) -> list[str]:
    """The command line without the options that say where this machine has things."""
    kept = []
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if not skip and name not in ("--llama-cpp", "--gguf"):
            kept.append(word)
        skip = not skip and word in ("--llama-cpp", "--gguf")
    return kept


if __name__ == "__main__":
    main()
