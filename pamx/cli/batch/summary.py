"""What a batch did, as a table for people.

Definitions: time to the first token runs from the submission of a request to the engine, so it
includes waiting for a place; of several answers to a request, the first one's counts. Times
between tokens are the gaps inside every answer, pooled. Percentiles interpolate linearly.
Throughput is over the time from the first submission to the end. The prefix hit rate is the share
of prompt tokens found in pages and not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pamx.cli.batch.durations import duration_text
from pamx.cli.batch.progress import Progress
from pamx.sizes import counted

if TYPE_CHECKING:
    from pamx.engine.batch import BatchStats

_PERCENTILES = (50, 90, 99)


def table(
    progress: Progress,
    seconds: float,
    stats: BatchStats,
    ttft: Sequence[float],
    earlier: int,
    computed_by: str,
) -> str:
    """The table, as lines of a name and figures.

    Args:
        progress: Has counted the rows.
        seconds: How long the batch ran; above 0.
        stats: What the engine counted.
        ttft: Seconds to the first token, one for each answered request.
        earlier: Requests that an earlier run answered.
        computed_by: What computed the model.
    """
    parts = [(progress.done, "done"), (progress.failed, "failed"), (progress.bad, "bad")]
    parts += [(progress.unfinished, "unfinished")] if progress.unfinished else []
    parts += [(earlier, "from an earlier run")] if earlier else []
    tokens, done = stats.completion_tokens, progress.done
    hits = 100 * stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0
    rows = [
        ("Requests", ", ".join(f"{count:,} {word}" for count, word in parts)),
        ("Tokens", f"{stats.prompt_tokens:,} of prompts, {tokens:,} generated"),
        ("Time", duration_text(seconds)),
        (
            "Throughput",
            f"{tokens / seconds:,.1f} tokens/s, {60 * done / seconds:,.1f} requests/min",
        ),
        ("Time to first token", _percentiles(ttft)),
        ("Between tokens", _percentiles(stats.gaps)),
        ("Prefix hit rate", f"{hits:.1f} % ({counted(stats.cached_tokens, 'token')})"),
        ("Preemptions", f"{stats.preemptions:,}, {stats.swaps:,} of them swapped"),
        ("Peak pages", f"{stats.peak_blocks:,} of {stats.num_blocks:,}"),
        ("Computed by", computed_by),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {figures}" for name, figures in rows)


def _percentiles(values: Sequence[float]) -> str:
    if not values:
        return "none"
    import numpy as np

    found = np.percentile(np.asarray(values), _PERCENTILES)
    return ", ".join(
        f"p{rank} {duration_text(float(value))}"
        for rank, value in zip(_PERCENTILES, found, strict=True)
    )
