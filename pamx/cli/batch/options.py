"""The options of `--batch`, and which options go together."""

from __future__ import annotations

from typing import Annotated

import typer

from pamx.cli import options
from pamx.cli.batch.choices import Format, Order
from pamx.native.step_limits import MOST_SEQUENCES

Batch = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Answer every row of this file ('-': standard input) and write results as JSONL.",
        callback=options.unicode_text,
        show_default=False,
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="With --batch: the results file.",
        callback=options.unicode_text,
        show_default="standard output",
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        help="With --batch: OpenAI batch rows, JSON rows with prompt or messages, or a prompt a "
        "line; auto looks at the file.",
    ),
]
OrderOption = Annotated[
    Order,
    typer.Option(
        "--order", help="With --batch: results in the order of the rows, or as they are completed."
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="With --batch: continue --output, without repeating finished rows."
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="With --batch: stop at a bad row instead of skipping it.")
]
MaxSeqs = Annotated[
    int,
    typer.Option(
        min=1,
        max=MOST_SEQUENCES,
        metavar="N",
        help="With --batch: most answers in progress at a time. Pages are made for so many of "
        "--context each, as far as half of the free memory goes; answers share them.",
    ),
]
TokenBudget = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --batch: most tokens that one step computes, prompts' too.",
        show_default="what suits the device",
    ),
]
PriorityField = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --batch: field of a row with its priority, a whole number; higher goes first.",
        callback=options.unicode_text,
        show_default=False,
    ),
]
N = Annotated[
    int,
    typer.Option(
        "--n", min=1, max=128, metavar="N", help="With --batch: answers to draw for each row."
    ),
]
NoPrefixCache = Annotated[
    bool,
    typer.Option(
        "--no-prefix-cache", help="With --batch: compute equal beginnings of prompts each time."
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="With --batch: no progress and no summary."),
]

_ONLY_BATCH = (
    "output",
    "format",
    "order",
    "resume",
    "strict",
    "max_seqs",
    "token_budget",
    "priority_field",
    "n",
    "no_prefix_cache",
    "quiet",
)
_NEVER_BATCH = {
    "prompt": "PROMPT has no place beside --batch: the file has the prompts.",
    "json": "results of --batch are JSON already.",
}


def check_usage(ctx: typer.Context, batch: str | None, output: str | None, resume: bool) -> None:
    """Refuses options that do not go together.

    Raises:
        typer.BadParameter: in words, which and why.
    """
    given = {}
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            given[parameter.name] = max(parameter.opts, key=len)
    if batch is None:
        for name in _ONLY_BATCH:
            if name in given:
                raise typer.BadParameter("it needs --batch.", param_hint=given[name])
        return
    if not batch:
        raise typer.BadParameter("it is empty: name a file.", param_hint="--batch")
    for name, reason in _NEVER_BATCH.items():
        if name in given:
            hint = "PROMPT" if name == "prompt" else given[name]
            raise typer.BadParameter(reason, param_hint=hint)
    if output == "":
        raise typer.BadParameter("it is empty: name a file.", param_hint="--output")
    if resume and output in (None, "-"):
        raise typer.BadParameter("it needs --output: the file to continue.", param_hint="--resume")
