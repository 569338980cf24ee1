"""The Typer application: which subcommands there are, and what all of them share."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pamx.cli.bench.command import app as bench_app
from pamx.cli.chat import chat
from pamx.cli.doctor.command import doctor
from pamx.cli.failures import report
from pamx.cli.generate import generate
from pamx.cli.models import app as models_app
from pamx.cli.pull import pull
from pamx.cli.usage import reworded
from pamx.errors import PamxError

# Of extra arguments too; Typer names only its subclass, from one library or another.
_UsageError: Any = typer.BadParameter.__base__


class Commands(TyperGroup):
    """A group whose commands may raise: the error becomes a message and an exit status."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().make_context(*args, **extra)  # --help and --version write here
        except OSError as error:
            raise typer.Exit(report(error)) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            error.message = reworded(error.message)
            raise
        except (PamxError, OSError, MemoryError, KeyboardInterrupt) as error:
            raise typer.Exit(report(error)) from None


app = typer.Typer(
    name="pamx",
    cls=Commands,
    no_args_is_help=True,
    # Plain help and errors: they read the same in a pipe, and need no rich.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import pamx

        typer.echo(f"pamx {pamx.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Run local language models on MLX with a paged KV cache.

    \b
    pamx chat                          talk with the built-in model
    pamx generate "Name a river."      one answer, for a person or a pipe
    pamx doctor                        whether all is well on this machine

    Results go to standard output, everything else to standard error.

    Exit status, in every command: 0 done. 1 it failed: the network, the disk, memory, some row or
    turn. 2 what was given is wrong: an option, a name that is no model, a file that is not there, a
    prompt or a context that is too long. 130 interrupted by Ctrl-C. 141 nobody reads standard
    output any more.
    """


app.command()(chat)
app.command()(generate)
app.command()(pull)
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")
app.command()(doctor)
