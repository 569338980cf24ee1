"""Loading an engine for a command, and saying what its user should know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamx.cli.terminal import note
from pamx.errors import NativeError

if TYPE_CHECKING:
    from pamx.engine import Engine


def load_engine(
    name: str | None,
    revision: str | None,
    trust_remote_code: bool,
    context: int | None,
    threads: int | None,
) -> Engine:
    """`pamx.load` with so many threads; a line on stderr if pages do not serve the model."""
    import pamx

    if threads is not None:
        _use_threads(threads)
    engine = pamx.load(
        name, revision=revision, trust_remote_code=trust_remote_code, context=context
    )
    if not engine.attention.paged:
        note(engine.attention.reason)
    return engine


def _use_threads(count: int) -> None:
    from pamx.native.loader import set_num_threads

    try:
        set_num_threads(count)
    except NativeError as error:
        note(f"--threads changes nothing: {error.message}")
