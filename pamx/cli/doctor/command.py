"""The command: runs the checks, or asks whether a model fits, as a table or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pamx.cli import options
from pamx.cli.doctor.row import Row
from pamx.cli.terminal import say, write_json

if TYPE_CHECKING:
    from pamx.cli.doctor.fit import Question

SCHEMA_VERSION = 1  # of schema.json
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}

Checks = Annotated[
    list[str] | None,
    typer.Option(
        "--check", metavar="ID", help="Run this check only; may be repeated.", show_default="all"
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Count warnings as failures.")]
Offline = Annotated[
    bool, typer.Option("--offline", help="Do not use the network; HF_HUB_OFFLINE=1 says the same.")
]
FitModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="Say whether this model fits, before any of it is loaded or downloaded; nothing else "
        f"is checked. {options.MODEL_HELP}",
        autocompletion=options.complete_model,
        callback=options.unicode_text,
        show_default=False,
    ),
]
FitContext = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        metavar="N",
        help="With --model: tokens of each sequence.",
        show_default="what the engine would take",
    ),
]
FitBatch = Annotated[
    int,
    typer.Option(
        "--batch", min=1, max=4096, metavar="B", help="With --model: sequences at a time."
    ),
]


def doctor(
    ctx: typer.Context,
    model: FitModel = None,
    context: FitContext = None,
    batch: FitBatch = 1,
    compute: options.ComputeOption = None,
    kv_dtype: options.KvTypeOption = options.KvType.AUTO,
    check: Checks = None,
    strict: Strict = False,
    offline: Offline = False,
    json: options.Json = False,
) -> None:
    """Check this machine and installation, or whether a model fits.

    Nothing is changed, and nothing but the Hugging Face Hub is contacted: to see whether it
    answers, and for the sizes of a model that is not here. Exit status 1 if something failed or
    the model does not fit; a warning is no failure without --strict.
    """
    _check_usage(ctx, model)
    if model is not None:
        from pamx.cli.doctor.fit import Question

        kind = None if compute is None else compute.value
        _show_fit(Question(model, context, batch, kind, kv_dtype.value, _offline(offline)), json)
    else:
        _show_checks(check or [], strict, _offline(offline), json)


def _check_usage(ctx: typer.Context, model: str | None) -> None:
    """Refuses options that belong to the other use."""
    others = ("check", "strict") if model else ("context", "batch", "compute", "kv_dtype")
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if parameter.name in others and source is not None and source.name == "COMMANDLINE":
            why = "it has no place beside --model." if model else "it needs --model."
            raise typer.BadParameter(why, param_hint=max(parameter.opts, key=len))


def _offline(asked: bool) -> bool:
    if asked:
        return True
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def _show_checks(wanted: list[str], strict: bool, offline: bool, json: bool) -> None:
    from pamx.cli.doctor.checks import IDS, run_checks

    if unknown := [name for name in wanted if name not in IDS]:
        raise typer.BadParameter(
            f"there is no check {unknown[0]!r}; there are {', '.join(IDS)}.", param_hint="--check"
        )
    rows = run_checks(wanted, offline=offline)
    bad = ("fail", "warn") if strict else ("fail",)
    failed = [row.id for row in rows if row.status in bad]
    if json:
        write_json(
            {
                "schema_version": SCHEMA_VERSION,
                "ok": not failed,
                "checks": [asdict(row) for row in rows],
            }
        )
    else:
        _table(rows)
    if failed:
        if not json:
            say(f"Failed: {', '.join(failed)}.")
        raise typer.Exit(1)


def _table(rows: list[Row]) -> None:
    from pamx.cli.tables import show

    cells = [(r.status, r.id, f"{r.message}\n{r.fix}" if r.fix else r.message) for r in rows]
    show((), cells, [_STYLES[row.status] for row in rows], whole=2)


def _show_fit(question: Question, json: bool) -> None:
    from pamx.cli.doctor.isolated import fit_in_child

    fit = fit_in_child(question)
    if json:
        write_json({"schema_version": SCHEMA_VERSION, "ok": fit.fits, "fit": fit.as_json()})
    else:
        from pamx.cli.doctor.fit_report import show_fit

        show_fit(fit)
    if not fit.fits:
        raise typer.Exit(1)
