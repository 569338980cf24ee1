"""The command: runs every check and shows the rows, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import typer

from pamx.cli import options
from pamx.cli.doctor.row import Row
from pamx.cli.terminal import say, write_json

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def doctor(json: options.Json = False) -> None:
    """Check this machine and installation.

    Nothing is changed and the network is not used. Exit status 1 if something failed; a warning
    is no failure.
    """
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
