"""Which attention kernel and partition really ran, and forcing another partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pamx.engine import Engine
    from pamx.substitute.paged_model import PagedModel


@contextmanager
def forced(partition: int | None) -> Iterator[str]:
    """Has attention use this partition meanwhile; None: the planner's own.

    Yields:
        "", or one sentence: why no partition can be forced here.
    """
    if partition is None:
        yield ""
    else:
        yield "cannot force here: this build's attention always takes the planner's partition."


def ran(engine: Engine, paged: PagedModel, sequences: int, context: int) -> dict[str, Any]:
    """The kernel, and the partition of a decode step of `sequences` at `context` tokens."""
    from pamx.bench.programs.facts import query_heads

    pages = paged.pages()[0]
    heads = query_heads(engine) or pages.kv_heads, pages.kv_heads, pages.k_dim
    return call_ran(engine.attention.kernel, heads, sequences, context)


def call_ran(
    kernel: str, heads: tuple[int, int, int], sequences: int, context: int
) -> dict[str, Any]:
    """The same of one call; `heads` are (query, KV, size)."""
    if kernel != "native-cpu":
        return {"kernel": kernel, "partition": None}
    from pamx.native.plan import plan_cpu_attention

    query, kv, dim = heads
    plan = plan_cpu_attention(query, kv, dim, dim, [1] * sequences, [context] * sequences)
    return {"kernel": kernel, "partition": plan.partition, "threads": plan.threads}
