"""Greedy tokens of pamx against plain mlx-lm: same float32 model, 20 prompts, 256 tokens each.

    python bench/greedy_parity.py [--prompts 20] [--tokens 256] [--workers 2] [--kernel native-cpu]
                                  [--compute exact] [--model FOLDER]

The prompts are pieces, of 1 to 3,000 tokens, of the text that Python's own help is made from.
Each is answered twice, on mlx-lm's own cache and on pages, by the loaded default model. Where the
tokens differ, the gap between the two best logits at that place is reported: a gap near float32's
rounding would be a tie, anything else a defect. Writes bench/results/greedy_parity.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pamx.substitute.levels import ComputeMode

LENGTHS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 200, 233, 300, 377, 610, 987, 1500, 2200, 3000]
RESULT = Path(__file__).parent / "results" / "greedy_parity.json"


def compare(job: tuple[int, int, str, ComputeMode, str | None]) -> dict[str, Any]:
    """Answers one prompt both ways."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    import pamx.models
    from pamx.attention.backend import backend_named
    from pamx.engine.slot import Paged, Slot
    from pamx.engine.steps import decode, prefill
    from pamx.substitute.needs import prefill_chunk
    from pamx.substitute.paged_model import PagedModel

    length, tokens, kernel, compute, name = job
    loaded = pamx.models.load(name, progress=False)
    prompt = _prompt(loaded.tokenizer, length)
    model = loaded.model

    begin = time.perf_counter()
    caches = make_prompt_cache(model)
    if prompt[:-1]:
        model(mx.array([prompt[:-1]]), cache=caches)
        mx.eval([c.state for c in caches])
    expected, gaps, last = [], [], prompt[-1]
    for _ in range(tokens):
        logits = model(mx.array([[last]]), cache=caches)[0, -1]
        best = mx.sort(logits)[-2:]
        last = int(mx.argmax(logits))
        expected.append(last)
        gaps.append(float(best[1] - best[0]))
    plain = time.perf_counter() - begin

    begin = time.perf_counter()
    backend = backend_named(kernel)
    with PagedModel(model, context=4096, backend=backend, compute=compute) as paged:
        slot = Slot(Paged(paged.sequence()))
        list(prefill(model, slot, prompt, prefill_chunk(paged.compute.mode)))
        found = list(
            decode(
                model,
                slot,
                prompt[-1],
                lambda logits, _: mx.argmax(logits, axis=-1),
                tokens,
                backend.in_place,
            )
        )
    pages = time.perf_counter() - begin

    differs = next((i for i in range(tokens) if expected[i] != found[i]), None)
    return {
        "prompt_tokens": len(prompt),
        "tokens": tokens,
        "equal": differs is None,
        "first_difference": differs,
        "gap_there": None if differs is None else gaps[differs],
        "smallest_gap": min(gaps),
        "seconds_mlx_lm": round(plain, 1),
        "seconds_pamx": round(pages, 1),
    }


def _prompt(tokenizer: Any, length: int) -> list[int]:
    from pydoc_data.topics import topics

    text = "\n".join(topics[key] for key in sorted(topics))
    start = length * 37  # another place for each prompt
    return [int(t) for t in tokenizer.encode(text[start : start + 12 * length + 40])[:length]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=len(LENGTHS))
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kernel", default="native-cpu", choices=["native-cpu", "mlx"])
    parser.add_argument("--compute", default="exact", choices=["exact", "mlx"])
    parser.add_argument("--model", default=None, help="default: the built-in model")
    args = parser.parse_args()

    import pamx.models
    from pamx.native import library

    folder = pamx.models.fetch(args.model)
    native = library()
    lengths = sorted(LENGTHS[: args.prompts], reverse=True)  # long ones first: workers end together
    jobs = [(n, args.tokens, args.kernel, args.compute, args.model) for n in lengths]
    rows = []
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for row in pool.map(compare, jobs):
            rows.append(row)
            print(json.dumps(row), flush=True)
    equal = sum(row["equal"] for row in rows)
    print(f"{equal} of {len(rows)} prompts give the same {args.tokens} tokens")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(
        json.dumps(
            {
                "what": "greedy tokens, pamx on pages against mlx-lm's own cache, float32",
                "command": f"python bench/greedy_parity.py --prompts {args.prompts} "
                f"--tokens {args.tokens} --kernel {args.kernel} --compute {args.compute}",
                "model": folder.name.partition("--")[0],
                "kernel": args.kernel,
                "compute": args.compute,
                "cpu_isa": native.cpu_isa,
                "build_hash": native.build_hash,
                "mlx": native.mlx_loaded,
                "machine": f"{platform.system()} {platform.machine()}",
                "equal": equal,
                "prompts": sorted(rows, key=lambda r: r["prompt_tokens"]),
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
