"""The command: runs every check and shows the rows, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from pamx.cli import options
from pamx.cli.doctor.row import Row
from pamx.cli.terminal import say, write_json

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


class Dtype(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def doctor(
    json: options.Json = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Instead: which attention kernels would run, and why, on any machine.",
        ),
    ] = False,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="Q,KV,SIZE",
            help="With --plan: query heads, KV heads and head size, for example 32,8,128; a fourth "
            "number is the values' size.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]", help="With --plan: tokens of each sequence.", show_default=False
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --plan: GPU cores; without, this machine's CPU is planned for too.",
            show_default="this machine's",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, max=4096, metavar="B", help="With --plan: sequences.")
    ] = 1,
    new: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="With --plan: new tokens of each sequence; 1: decoding."
        ),
    ] = 1,
    block_size: Annotated[
        int, typer.Option(metavar="N", help="With --plan: tokens a block: 8, 16 or 32.")
    ] = 16,
    dtype: Annotated[
        Dtype, typer.Option(metavar="TYPE", help="With --plan: the model's type.")
    ] = Dtype.FLOAT16,
    family: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --plan: the GPU's architecture, for example applegpu_g15g.",
            show_default="unknown",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --plan: positions that a token sees.",
            show_default="all",
        ),
    ] = None,
    mla: Annotated[
        bool, typer.Option("--mla", help="With --plan: the cache is a latent one (DeepSeek's MLA).")
    ] = False,
) -> None:
    """Check this machine and installation.

    Nothing is changed and the network is not used. Exit status 1 if something failed; a warning
    is no failure.
    """
    if plan:
        from pamx.cli.doctor.plan import Question, explain

        if heads is None or context is None:
            raise typer.BadParameter("it needs --heads and --context.", param_hint="--plan")
        explain(
            Question(
                heads, context, cores, batch, new, block_size, dtype.value, family, window, mla
            ),
            json,
        )
        return
    if any((heads, context, cores, batch > 1, new > 1, family, window, mla)):
        raise typer.BadParameter("it is what the other options given go with.", param_hint="--plan")
    rows = list(_rows())
    failed = [row.id for row in rows if row.status == "fail"]
    if json:
        write_json({"ok": not failed, "checks": [asdict(row) for row in rows]})
    else:
        from pamx.cli.tables import show

        cells = [(r.status, r.id, f"{r.message}\n{r.fix}" if r.fix else r.message) for r in rows]
        show((), cells, [_STYLES[row.status] for row in rows])
    if failed:
        if not json:
            say(f"Failed: {', '.join(failed)}.")
        raise typer.Exit(1)


def _rows() -> Iterator[Row]:
    from pamx.cli.doctor import machine, software, storage
    from pamx.cli.doctor.isolated import compute_rows
    from pamx.cli.doctor.row import guarded

    yield guarded("system", machine.check_system)
    yield guarded("cpu", machine.check_cpu)
    yield guarded("instruction-set", machine.check_instruction_set)
    yield guarded("memory", machine.check_memory)
    yield guarded("python", software.check_python)
    yield guarded("pamx", software.check_pamx)
    yield guarded("mlx-lm", software.check_mlx_lm)
    yield from compute_rows()
    yield guarded("cache", storage.check_cache)
    yield guarded("hub-cache", storage.check_hub_cache)
    yield guarded("models", storage.check_models)
    yield guarded("default-model", storage.check_default_model)
    yield guarded("hub", storage.check_hub)
