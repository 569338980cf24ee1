"""mlx-lm as it comes, on dense caches, in a process that uses nothing of pamx's engine.

One request runs through `generate_step`, several through `BatchGenerator` with its own settings
and room for all of them, since mlx-lm answers them so.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from pamx.bench.programs import memory
from pamx.bench.programs.arrivals import drive
from pamx.bench.programs.serving import serve, token_lines
from pamx.sizes import counted

# Tokens of a prompt, and prompts, that mlx-lm reads at a time.
_CHUNK, _PROMPTS = 2048, 8


class MlxLm:
    def __init__(self) -> None:
        self.model: Any = None

    def hello(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import pamx.models

        loaded = pamx.models.load(
            question["model"],
            trust_remote_code=bool(question.get("trust_remote_code")),
            progress=False,
        )
        self.model = loaded.model
        yield {"type": "ready", "name": "mlx-lm", "version": version("mlx-lm")}

    def fit(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """For each shape (context, batch) why it does not fit, with the arithmetic, or ""."""
        from pamx.kv.budget import measure_rest

        memory.release()
        budget, (each, scores) = measure_rest(), self._bytes()
        reasons = []
        for context, batch in question["shapes"]:
            cache = context * batch * each
            queries = min(context, _CHUNK) * min(batch, _PROMPTS)
            work = queries * context * scores
            why = (
                f"{counted(batch, 'sequence')} of {context:,} tokens take {cache:,} "
                f"bytes of dense cache and {work:,} for the scores of a piece of prompt: "
                f"{budget.explain()}."
            )
            reasons.append(why if cache + work > budget.pages else "")
        yield {"type": "fits", "unfit": reasons}

    def _bytes(self) -> tuple[int, int]:
        """Of dense cache for a token, and of attention scores for a query and a token before it.

        The scores of a layer are held twice, before and after softmax; only Metal's kernels do
        without them. Caches of other kinds than keys and values count as nothing.
        """
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache

        cache = make_prompt_cache(self.model)
        mx.eval(self.model(mx.array([[1]]), cache=cache))
        held = [a for c in cache for a in (getattr(c, "keys", None), getattr(c, "values", None))]
        arrays = [a for a in held if isinstance(a, mx.array) and a.ndim == 4]
        each = sum(a.nbytes // a.shape[2] for a in arrays)
        if mx.default_device().type != mx.DeviceType.cpu or not arrays:
            return each, 0
        args = getattr(self.model, "args", None)
        heads = getattr(args, "num_attention_heads", None)
        return each, 2 * arrays[0].dtype.size * (heads if isinstance(heads, int) else 1)

    def run(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        requests = question["requests"]
        peak_memory = memory.watch() if question.get("memory") else None
        gc.collect()
        run = self._alone if len(requests) == 1 and not requests[0].get("at") else self._together
        tokens, times = run(requests)
        peak, peak_of = peak_memory() if peak_memory else (None, None)
        yield from token_lines(tokens, times)
        yield {
            "type": "done",
            "id": question["id"],
            "peak_memory_bytes": peak,
            "peak_memory_of": peak_of,
            "dispatch": {"kernel": "mlx-lm, dense cache", "partition": None},
        }

    def _alone(self, requests: list[dict[str, Any]]) -> tuple[list[list[int]], list[list[float]]]:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        tokens: list[int] = []
        times: list[float] = []
        begin = time.perf_counter()
        prompt = mx.array(requests[0]["prompt"])
        for token, _ in generate_step(prompt, self.model, max_tokens=requests[0]["max_tokens"]):
            times.append(time.perf_counter() - begin)
            tokens.append(int(token))
        return [tokens], [times]

    def _together(
        self, requests: list[dict[str, Any]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        from mlx_lm.generate import BatchGenerator

        generator = BatchGenerator(self.model, completion_batch_size=max(32, len(requests)))
        tokens: list[list[int]] = [[] for _ in requests]
        times: list[list[float]] = [[] for _ in requests]
        place: dict[int, int] = {}
        unfinished: set[int] = set()
        begin = time.perf_counter()

        def submit(index: int) -> None:
            request = requests[index]
            (uid,) = generator.insert([list(request["prompt"])], [request["max_tokens"]])
            place[uid] = index
            unfinished.add(uid)

        def step() -> None:
            _, responses = generator.next()
            now = time.perf_counter() - begin
            for response in responses:
                tokens[place[response.uid]].append(int(response.token))
                times[place[response.uid]].append(now)
                if response.finish_reason is not None:
                    unfinished.discard(response.uid)

        drive([r.get("at", 0.0) for r in requests], submit, lambda: bool(unfinished), step)
        generator.close()
        return tokens, times


def main() -> None:
    program = MlxLm()
    serve({"hello": program.hello, "fit": program.fit, "run": program.run})


if __name__ == "__main__":
    main()
