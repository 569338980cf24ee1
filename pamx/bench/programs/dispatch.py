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
    kernel = engine.attention.kernel
    if kernel != "native-cpu":
        return {"kernel": kernel, "partition": None}
    from pamx.bench.programs.facts import query_heads
    from pamx.native.plan import plan_cpu_attention

    geometry = paged.pages()[0]
    heads = query_heads(engine) or geometry.kv_heads
    plan = plan_cpu_attention(
        heads,
        geometry.kv_heads,
        geometry.k_dim,
        geometry.v_dim,
        [1] * sequences,
        [context] * sequences,
        window=geometry.window,
    )
    return {"kernel": kernel, "partition": plan.partition, "threads": plan.threads}
