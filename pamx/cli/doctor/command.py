"""The command: runs the checks, or asks whether a model fits, as a table or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pamx.cli import options
from pamx.cli.doctor.row import Row
from pamx.cli.terminal import say, write, write_json
from pamx.native.step_limits import MOST_SEQUENCES

if TYPE_CHECKING:
    from pamx.cli.doctor.fit import Question

SCHEMA_VERSION = 2  # of schema.json
_MOST_DIGITS = 40  # of a number of tokens
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
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="N[,N...]",
        help="Tokens of each sequence; with --plan there may be one number for each.",
        show_default="with --model: what the engine would take",
    ),
]
Batch = Annotated[
    int,
    typer.Option("--batch", min=1, max=MOST_SEQUENCES, metavar="B", help="Sequences at a time."),
]


class Dtype(StrEnum):
    """Of a model whose attention is planned."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


Plan = Annotated[
    bool,
    typer.Option("--plan", help="Say which attention kernels would run, and why, on any machine."),
]
PlanHeads = Annotated[
    str | None,
    typer.Option(
        "--heads",
        metavar="Q,KV,SIZE",
        help="With --plan: query heads, KV heads and head size, for example 32,8,128; a fourth "
        "number is the values' size.",
        show_default=False,
    ),
]
PlanCores = Annotated[
    int | None,
    typer.Option(
        "--cores",
        min=1,
        metavar="N",
        help="With --plan: GPU cores; without, this machine's CPU is planned for too.",
        show_default="this machine's",
    ),
]
PlanNew = Annotated[
    int,
    typer.Option(
        "--new", min=1, metavar="N", help="With --plan: new tokens of each sequence; 1: decoding."
    ),
]
PlanBlockSize = Annotated[
    int,
    typer.Option("--block-size", metavar="N", help="With --plan: tokens a block: 8, 16 or 32."),
]
PlanDtype = Annotated[
    Dtype, typer.Option("--dtype", metavar="TYPE", help="With --plan: the model's type.")
]
PlanFamily = Annotated[
    str | None,
    typer.Option(
        "--family",
        metavar="NAME",
        help="With --plan: the GPU's architecture, for example applegpu_g15g.",
        show_default="unknown",
    ),
]
PlanWindow = Annotated[
    int | None,
    typer.Option(
        "--window",
        min=1,
        metavar="N",
        help="With --plan: positions that a token sees.",
        show_default="all",
    ),
]
PlanMla = Annotated[
    bool, typer.Option("--mla", help="With --plan: the cache is a latent one (DeepSeek's MLA).")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="With --model: also what each layer keeps, and how attention will be cut into work.",
    ),
]

# The options of each use, beside --json; those of "" go without --model and --plan.
_USES = {
    "--model": {"model", "context", "batch", "compute", "kv_dtype", "offline", "verbose"},
    "--plan": {
        "plan", "heads", "context", "cores", "batch", "new", "block_size", "dtype", "family",
        "window", "mla",
    },
    "": {"check", "strict", "offline"},
}  # fmt: skip


def doctor(
    ctx: typer.Context,
    check: Checks = None,
    strict: Strict = False,
    offline: Offline = False,
    model: FitModel = None,
    context: Context = None,
    batch: Batch = 1,
    compute: options.ComputeOption = None,
    kv_dtype: options.KvTypeOption = options.KvType.AUTO,
    plan: Plan = False,
    heads: PlanHeads = None,
    cores: PlanCores = None,
    new: PlanNew = 1,
    block_size: PlanBlockSize = 16,
    dtype: PlanDtype = Dtype.FLOAT16,
    family: PlanFamily = None,
    window: PlanWindow = None,
    mla: PlanMla = False,
    verbose: Verbose = False,
    json: options.Json = False,
) -> None:
    """Check this machine, or whether a model fits, or explain a plan.

    Nothing is changed, and nothing but the Hugging Face Hub is contacted: to see whether it
    answers, and for the sizes of a model that is not here. Sizes are decimal: 1 MB is a million
    bytes. Exit status 1 if something failed or the model does not fit into memory, 2 if it was not
    made for so long a context; a warning is no failure without --strict.
    """
    _check_usage(ctx, "--plan" if plan else "--model" if model is not None else "")
    if plan:
        from pamx.cli.doctor import plan as planning

        if heads is None or context is None:
            raise typer.BadParameter("it needs --heads and --context.", param_hint="--plan")
        question = planning.Question(
            heads, context, cores, batch, new, block_size, dtype.value, family, window, mla
        )
        planning.explain(question, json)
    elif model is not None:
        from pamx.cli.doctor.fit import Question

        kind = None if compute is None else compute.value
        tokens = None if context is None else _tokens(context)
        asked = Question(model, tokens, batch, kind, kv_dtype.value, _offline(offline))
        _show_fit(asked, verbose, json)
    else:
        _show_checks(check or [], strict, _offline(offline), json)


def _check_usage(ctx: typer.Context, use: str) -> None:
    """Refuses options that belong to another use."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if source is None or source.name != "COMMANDLINE" or parameter.name == "json":
            continue
        if parameter.name not in _USES[use]:
            homes = [name for name, its in _USES.items() if name and parameter.name in its]
            why = f"it has no place beside {use}." if use else f"it needs {' or '.join(homes)}."
            raise typer.BadParameter(why, param_hint=max(parameter.opts, key=len))


def _tokens(text: str) -> int:
    from pamx.native.step_limits import LONGEST_CONTEXT

    if not text.isdecimal() or not text.isascii() or not text.strip("0"):
        raise typer.BadParameter(
            f"with --model it is one number of at least 1, not {_cut(text)!r}.",
            param_hint="--context",
        )
    if len(text.lstrip("0")) > _MOST_DIGITS or int(text) > LONGEST_CONTEXT:
        raise typer.BadParameter(
            f"a sequence has at most {LONGEST_CONTEXT:,} tokens, not {_cut(text)}.",
            param_hint="--context",
        )
    return int(text)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."


def _offline(asked: bool) -> bool:
    if asked:
        return True
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def _show_checks(wanted: list[str], strict: bool, offline: bool, json: bool) -> None:
    from pamx.cli.doctor.checks import IDS, run_checks
    from pamx.cli.doctor.summary import closing, counts, verdict

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
                "summary": counts(rows),
                "verdict": "" if wanted else verdict(rows),
                "checks": [asdict(row) for row in rows],
            }
        )
    else:
        _table(rows)
        if not wanted:
            write(f"\n{closing(rows)}\n")
    if failed:
        if not json:
            say(f"Failed: {', '.join(failed)}.")
        raise typer.Exit(1)


def _table(rows: list[Row]) -> None:
    from pamx.cli.tables import show

    cells = [(r.status, r.id, f"{r.message}\n{r.fix}" if r.fix else r.message) for r in rows]
    show((), cells, [_STYLES[row.status] for row in rows], whole=2)


def _show_fit(question: Question, verbose: bool, json: bool) -> None:
    from pamx.cli.doctor.environment import check_partition
    from pamx.cli.doctor.isolated import fit_in_child

    check_partition()
    fit = fit_in_child(question)
    if json:
        write_json({"schema_version": SCHEMA_VERSION, "ok": fit.fits, "fit": fit.as_json()})
    else:
        from pamx.cli.doctor.fit_report import show_fit

        show_fit(fit, verbose)
    if fit.trained is not None and fit.context > fit.trained:
        raise typer.Exit(2)
    if not fit.fits:
        raise typer.Exit(1)
