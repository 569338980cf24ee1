"""What rounding activations to int8 does to a model: pamx's `fast` against its `exact`.

    python bench/quality.py [--windows 5] [--llama-cpp FOLDER] [--gguf FILE]

Teacher-forced on real text: Python's language reference as the standard library carries it
(pydoc_data.topics; the result names the version). The text is cut into windows of 2,048 tokens,
each read anew, and the predictions in the second half of each are scored, as llama-perplexity does
it: 1,023 a window, so that five windows score 5,115. Three figures, all against `exact` on the same
weights: the mean Kullback-Leibler divergence in nats, the ratio of the perplexities, and how often
the likeliest token is the same.

Beside them, llama.cpp's own arithmetic on the same GGUF file, text and windows: its
--kl-divergence against the logits of the same weights expanded to float32 by llama-quantize, with
float32 keys and values. bench/peer.py says how to build its tools; --no-llama-cpp does without.
Writes bench/results/quality.json.
"""

from __future__ import annotations

import argparse
import os
import platform
import pydoc_data.topics
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from peer import BUILD, default_gguf, run_tool
from record import write_result

import pamx

WINDOW, CHUNK = 2048, 512
TOPICS = ("objects", "types", "execmodel", "specialnames", "compound")
FloatArray = npt.NDArray[np.float32]


def text() -> str:
    return "\n\n".join(pydoc_data.topics.topics[name].strip() for name in TOPICS)


def log_probabilities(engine: pamx.Engine, window: list[int]) -> FloatArray:
    """[WINDOW / 2 - 1, vocabulary]: of the token after each place of the second half."""
    slot = engine.new_slot()
    parts = []
    for start in range(0, WINDOW, CHUNK):
        tokens = window[start : start + CHUNK]
        with slot.step(tokens) as caches:
            logits = engine.model(mx.array([tokens]), cache=caches)[0].astype(mx.float32)
            if start < WINDOW // 2:
                mx.eval(slot.sequence.arrays())
            else:
                parts.append(np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True)))
        mx.clear_cache()
    slot.close()
    return np.concatenate(parts)[:-1]


def compare(arms: dict[str, pamx.Engine], windows: list[list[int]]) -> dict[str, Any]:
    """KL divergence, perplexity ratio and agreement of every arm with the first."""
    reference = next(iter(arms))
    found: dict[str, list[FloatArray]] = {arm: [] for arm in arms}
    for number, window in enumerate(windows):
        targets = window[WINDOW // 2 + 1 :]
        rows = np.arange(len(targets))
        base = log_probabilities(arms[reference], window)
        weight = np.exp(base)
        for arm, engine in arms.items():
            own = base if arm == reference else log_probabilities(engine, window)
            divergence = (weight * (base - own)).sum(-1)
            same = own.argmax(-1) == base.argmax(-1)
            found[arm].append(np.stack([divergence, -own[rows, targets], same]))
        print(f"window {number + 1} of {len(windows)}", file=sys.stderr, flush=True)
    scored = {arm: np.concatenate(parts, axis=1) for arm, parts in found.items()}
    exact = scored.pop(reference)
    figures: dict[str, Any] = {f"perplexity_{reference}": round(float(np.exp(exact[1].mean())), 4)}
    for arm, (divergence, surprise, same) in scored.items():
        figures[arm] = {
            "kl_divergence": round(float(divergence.mean()), 6),
            "kl_divergence_error": round(float(divergence.std() / len(divergence) ** 0.5), 6),
            "perplexity_ratio": round(float(np.exp((surprise - exact[1]).mean())), 5),
            "same_likeliest_token": round(float(same.mean()), 5),
        }
    return figures


def llama_cpp(
    folder: Path | None, gguf: Path, threads: int, windows: list[list[int]]
) -> dict[str, Any]:
    """The same figures of llama.cpp, after checking that it read the same tokens."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        wide, base, source = (Path(scratch, name) for name in ("f32.gguf", "logits", "text"))
        source.write_text(text(), encoding="utf-8")
        run_tool(folder, "llama-quantize", "--allow-requantize", str(gguf), str(wide), "F32", "2")
        common = ["-c", str(WINDOW), "-b", str(WINDOW), "-t", str(threads)]
        exact = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "--chunks", str(len(windows))]
        save = ["--save-all-logits", str(base)]
        model = ["-m", str(wide), "-f", str(source)]
        run_tool(folder, "llama-perplexity", *model, *common, *exact, *save)
        with base.open("rb") as file:
            head = file.read(20)
            count = len(windows) * WINDOW
            tokens = [token for window in windows for token in window]
            read = np.frombuffer(file.read(4 * count), np.int32).tolist()
        if struct.unpack("<8sIii", head)[1] != WINDOW or read != tokens:
            sys.exit("llama.cpp cut the text into other tokens; the figures would not compare.")
        kl = ["--kl-divergence", "--kl-divergence-base", str(base)]
        said = run_tool(folder, "llama-perplexity", "-m", str(gguf), *common, *kl)

    def number(label: str) -> float:
        found = re.search(rf"{label}\s*:\s*(\S+)", said)
        if found is None:
            sys.exit(f"llama-perplexity printed no {label}:\n{said[-2000:]}")
        return float(found[1])

    return {
        "perplexity_float32": number(r"Mean PPL\(base\)"),
        "own": {
            "kl_divergence": number("Mean    KLD"),
            "perplexity_ratio": number(r"Mean PPL\(Q\)/PPL\(base\)"),
            "same_likeliest_token": round(number("Same top p") / 100, 5),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gguf", type=Path, help="a model; default: pamx's default model")
    parser.add_argument("--llama-cpp", type=Path, help="the folder of llama.cpp's tools")
    parser.add_argument("--no-llama-cpp", action="store_true")
    args = parser.parse_args()
    os.environ["PAMX_NUM_THREADS"] = str(args.threads)
    gguf = args.gguf or default_gguf()

    def load(compute: Any, kv_dtype: Any) -> pamx.Engine:
        engine = pamx.load(str(gguf), context=WINDOW, compute=compute, kv_dtype=kv_dtype)
        if engine.compute.mode != compute:
            sys.exit(f"pamx does not run this model in {compute!r}: {engine.compute.reason}")
        return engine

    arms = {
        "exact": load("exact", "float32"),
        "exact, float16 pages": load("exact", "float16"),
        "fast, float16 pages": load("fast", "float16"),
    }
    ids = arms["exact"].tokenizer.encode(text())
    if len(ids) < args.windows * WINDOW:
        parser.error(f"the text has {len(ids) // WINDOW} windows")
    windows = [ids[n * WINDOW : (n + 1) * WINDOW] for n in range(args.windows)]
    figures: dict[str, Any] = {
        "model": arms["exact"].name,
        "text": f"pydoc_data.topics of Python {platform.python_version()}: {', '.join(TOPICS)}",
        "scored_tokens": args.windows * (WINDOW // 2 - 1),
        "pamx": compare(arms, windows),
    }
    print(figures["pamx"], flush=True)
    if not args.no_llama_cpp:
        figures["llama_cpp"] = llama_cpp(args.llama_cpp, gguf, args.threads, windows)
        print(figures["llama_cpp"], flush=True)
    write_result(
        "quality",
        "int8 activations against float32 ones, teacher-forced on real text",
        f"python bench/quality.py --windows {args.windows}",
        figures,
    )


if __name__ == "__main__":
    main()
