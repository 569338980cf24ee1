"""Loading an engine for a command, and saying what its user should know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamx.cli.terminal import note

if TYPE_CHECKING:
    from pamx.engine import Engine


def load_engine(
    name: str | None, revision: str | None, trust_remote_code: bool, context: int | None
) -> Engine:
    """`pamx.load`, with a line on stderr if pages do not serve the model."""
    import pamx

    engine = pamx.load(
        name, revision=revision, trust_remote_code=trust_remote_code, context=context
    )
    if not engine.attention.paged:
        note(engine.attention.reason)
    return engine
