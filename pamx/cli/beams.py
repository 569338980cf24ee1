"""`pamx generate --beams`: the most likely answers instead of a drawn one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pamx.cli.engine_thread import EngineThread
from pamx.cli.terminal import note, write, write_json

if TYPE_CHECKING:
    from pamx.engine import Engine
    from pamx.engine.completion import BeamAnswer

Beams = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=32,
        metavar="N",
        help="Search the most likely answer, following N at a time, instead of drawing one. The "
        "best is written; with --json all N and their scores.",
        show_default=False,
    ),
]
_DRAWING = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "batch")


def check_usage(ctx: typer.Context, beams: int | None) -> None:
    """Refuses options that mean nothing to a search.

    Raises:
        typer.BadParameter: in words, which.
    """
    if beams is None:
        return
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE" and parameter.name in _DRAWING:
            raise typer.BadParameter(
                "it does not go with --beams.", param_hint=max(parameter.opts, key=len)
            )


def search(
    load: Callable[[], Engine],
    label: str,
    prompt: Any,
    beams: int,
    max_tokens: int | None,
    raw: bool,
    json: bool,
) -> None:
    """Runs the search and writes what it found."""

    def run(engine: Engine) -> list[BeamAnswer]:
        return engine.beam_search(prompt, beams=beams, max_tokens=max_tokens, raw=raw)

    with EngineThread(load, label) as thread:
        found = thread.call(run)
        name = thread.call(lambda engine: engine.name)
    if json:
        answers = [
            {
                "text": answer.text,
                "score": answer.score,
                "completion_tokens": len(answer.tokens),
                "finish_reason": answer.finish_reason,
            }
            for answer in found
        ]
        write_json({"model": name, "beams": answers})
    else:
        write(found[0].text.rstrip("\n") + "\n")
    if max_tokens is None and found[0].finish_reason == "length":
        note("The answer is cut off: the context is full.")
