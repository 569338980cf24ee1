"""pamx's own engine as a measured program: one load, then any pages, batch and partition.

Beyond `pamx.bench.protocol` it answers `fit` (which shapes do not fit, before any is run) and
`prompts` (token ids of a given length).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pamx.bench import text
from pamx.bench.programs import dispatch, facts, memory
from pamx.bench.programs.arrivals import drive
from pamx.bench.programs.serving import serve, token_lines
from pamx.errors import RequestError
from pamx.sizes import counted

if TYPE_CHECKING:
    import mlx.core as mx

    from pamx.engine import Engine
    from pamx.substitute.paged_model import PagedModel

# What the engine's own pool holds: every sample gets pages of its own.
_OWN_POOL = 64
_SYSTEM_PAGE = 4096  # bytes


def room_for(context: int, block_size: int) -> int:
    """Tokens of pool for a sequence: the scheduler wants a block to spare for each that runs."""
    return (-(-context // block_size) + 1) * block_size


class PamxEngine:
    def __init__(self) -> None:
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "hello comes first"
        return self._engine

    @property
    def paged(self) -> PagedModel:
        assert self.engine.paged is not None
        return self.engine.paged

    def hello(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import pamx

        if question.get("threads"):
            from pamx.native.loader import set_num_threads

            set_num_threads(question["threads"])
        self._engine = engine = pamx.load(
            question["model"] or None,
            revision=question.get("revision"),
            trust_remote_code=bool(question.get("trust_remote_code")),
            context=_OWN_POOL,
            compute=question.get("compute"),
            progress=False,
        )
        if engine.paged is None:
            raise RequestError(
                f"{engine.name} is not served from pages, which this measures. "
                f"{engine.attention.reason}",
                "Take another model.",
            )
        # Answers run to their full length: what ends one is a token like any other.
        engine.tokenizer.eos_token_ids = []
        yield {"type": "ready", "name": "pamx", "version": pamx.__version__} | facts.of(engine)

    def fit(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """For each shape (context, batch) why it does not fit, with the arithmetic, or ""."""
        from pamx.kv.budget import measure_rest
        from pamx.kv.pool import token_bytes

        trained, settings = self.engine.trained_context, question["settings"]
        memory.release()
        budget = measure_rest()
        each = token_bytes(self.paged.pages(settings["kv_dtype"]))
        reasons = []
        for context, batch in question["shapes"]:
            needed = room_for(context, settings["block_size"]) * batch * each
            why = ""
            if trained is not None and context > trained:
                why = (
                    f"A context of {context:,} tokens is more than the {trained:,} that "
                    f"{self.engine.name} was made for."
                )
            elif needed > budget.pages:
                why = (
                    f"{counted(batch, 'sequence')} of {context:,} tokens take "
                    f"{needed:,} bytes of KV cache: {budget.explain()}."
                )
            reasons.append(why)
        yield {"type": "fits", "unfit": reasons}

    def prompts(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Token ids for lengths, of made-up text, and for texts."""
        seed = question["seed"]
        ids = [
            self._encode(wish)
            if isinstance(wish, str)
            else text.prompt(self._encode, wish, seed * 1_000_003 + number)
            for number, wish in enumerate(question["wishes"])
        ]
        yield {"type": "prompts", "prompts": ids, "texts": [self._decode(i) for i in ids]}

    def run(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        from pamx.engine.batch import BatchEngine
        from pamx.engine.request import Request

        settings, asked = question["settings"], question["requests"]
        longest = max(len(r["prompt"]) + r["max_tokens"] for r in asked)
        requests = [
            Request(str(i), list(r["prompt"]), max_tokens=r["max_tokens"])
            for i, r in enumerate(asked)
        ]
        tokens: list[list[int]] = [[] for _ in asked]
        times: list[list[float]] = [[] for _ in asked]
        peak_memory = memory.watch() if question.get("memory") else None
        gc.collect()
        paged = self._on_pages(settings, longest, len(asked))
        pool = paged.pool.nbytes
        with (
            dispatch.watched(settings.get("partition")) as watch,
            BatchEngine(
                paged,
                self.engine.tokenizer,
                longest,
                max_seqs=settings.get("max_seqs") or len(asked),
                prefix_cache=bool(settings.get("prefix_cache")),
                swap_ram=pool // 4,
                swap_disk=pool,
            ) as batch,
        ):
            begin = time.perf_counter()

            def step() -> None:
                outputs = batch.step()
                now = time.perf_counter() - begin
                for output in outputs:
                    if output.error is not None:
                        raise output.error
                    if output.token is not None:
                        tokens[int(output.request_id)].append(output.token)
                        times[int(output.request_id)].append(now)

            due = [float(r.get("at", 0.0)) for r in asked]
            drive(due, lambda i: batch.submit(requests[i]), lambda: batch.has_work, step)
            stats = batch.stats()
            ran = watch.ran()
        peak, peak_of = peak_memory() if peak_memory else (None, None)
        yield from token_lines(tokens, times)
        yield {
            "type": "done",
            "id": question["id"],
            "peak_memory_bytes": peak,
            "peak_memory_of": peak_of,
            "pages": stats.peak_blocks,
            "pool_pages": stats.num_blocks,
            "pool_bytes": pool,
            "steps": stats.steps,
            "preemptions": stats.preemptions,
            "cached_tokens": stats.cached_tokens,
            "dispatch": ran,
            "cannot_force": watch.impossible,
        }

    def _on_pages(self, settings: dict[str, Any], longest: int, sequences: int) -> PagedModel:
        """Pages for one sample, all of them in memory before it begins.

        Every sample has new ones: so none profits from where its pages happen to lie, and none
        counts those of another.
        """
        size, dtype = settings["block_size"], settings["kv_dtype"]
        tokens = settings.get("pool_tokens") or room_for(longest, size) * sequences
        paged = self.paged.with_other_pages(context=tokens, block_size=size, kv_dtype=dtype)
        for layer in paged.pool.layers:
            for pages in (layer.keys, layer.values):
                _touch(pages)
        return paged

    def _encode(self, written: str) -> list[int]:
        return self.engine.tokens(written, raw=True)

    def _decode(self, ids: list[int]) -> str:
        return str(self.engine.tokenizer.decode(ids))


def _touch(pages: mx.array) -> None:
    """Has the system give all of the memory now: the first write would wait for it otherwise."""
    import mlx.core as mx

    held = np.asarray(pages.view(mx.uint8)).reshape(-1)
    held[::_SYSTEM_PAGE] = 0


def main() -> None:
    program = PamxEngine()
    serve(
        {
            "hello": program.hello,
            "fit": program.fit,
            "prompts": program.prompts,
            "run": program.run,
        }
    )


if __name__ == "__main__":
    main()
