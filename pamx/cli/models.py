"""`pamx models`: the models on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pamx.cli import options
from pamx.cli.terminal import confirmed, is_terminal, say, write, write_json
from pamx.errors import ModelError, NotAModelError, RequestError
from pamx.sizes import bytes_text

if TYPE_CHECKING:
    from pamx.models import CachedModel

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A model as `pamx models` lists it; of a Hub repository also org/name@commit.",
        autocompletion=options.complete_model,
        callback=options.unicode_text,
        show_default=False,
    ),
]


@app.callback()
def models(ctx: typer.Context, json: options.Json = False) -> None:
    """List, locate and delete models.

    Without a command: list the models on this machine. PACKED is the disk space of weights that
    are kept as the kernels read them, so that the next start is quick: in the folder 'packed' of
    pamx's cache, which `pamx doctor` names and PAMX_HOME moves. A model folder of your own is
    listed if it has some. PAMX_WEIGHT_CACHE limits them when weights are packed. A model is marked
    'gone' if the GGUF file or the folder that it was made from is not there any more.

    \b
    pamx models
    pamx models path smollm2-135m
    pamx models rm mlx-community/Qwen3-0.6B-4bit
    """
    if ctx.invoked_subcommand is not None:
        return
    from pamx.models import cached

    found = cached()
    if json:
        write_json([_as_json(model) for model in found])
    elif found:
        from pamx.cli.tables import show

        header = ("NAME", "SOURCE", "SIZE", "PACKED", "PATH")
        rows = [
            (
                m.name,
                _source(m),
                _size(m.size_bytes),
                _size(m.packed_bytes),
                str(m.path),
            )
            for m in found
        ]
        show(header, rows)
    else:
        say("No models here yet. `pamx pull` fetches the built-in one.")


@app.command()
def path(name: Name) -> None:
    """Print the folder of a model that is on this machine."""
    found = _find(name)
    if len(found) > 1:
        raise RequestError(
            f"{name} is here in {len(found)} versions.",
            "Name one of them: " + ", ".join(f"{m.name}@{(m.revision or '')[:12]}" for m in found),
        )
    write(f"{found[0].path}\n")


@app.command()
def rm(
    name: Name,
    packed: Annotated[
        bool,
        typer.Option("--packed", help="Delete its packed weights alone; they are made again."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model and its packed weights from the cache.

    A GGUF file that it was converted from is kept. Of a model folder of your own, only the packed
    weights are deleted.
    """
    from pamx.models import remove, remove_packed

    found = _find(name)
    if packed:
        found = [replace(model, size_bytes=0) for model in found if model.packed_bytes]
        if not found:
            raise ModelError(
                f"No packed weights of {name} are kept.", "`pamx models` shows what is kept."
            )
    if not yes:
        if not is_terminal(sys.stdin):
            raise typer.BadParameter(
                "needed where nobody can be asked (standard input is not a terminal).",
                param_hint="--yes",
            )
        size = bytes_text(sum(model.size_bytes + model.packed_bytes for model in found))
        what = _what(found[0], name, packed)
        if not confirmed(f"Delete {what} ({size})?"):
            say("Nothing was deleted.")
            raise typer.Exit(1)
    if packed:
        say(f"Deleted {_what(found[0], name, packed)}, {bytes_text(remove_packed(found))}.")
        return
    gone = remove(name)
    size = bytes_text(gone.size_bytes + gone.packed_bytes)
    say(f"Deleted {_what(gone, gone.name)}, {size}.")


def _find(name: str) -> list[CachedModel]:
    """The cached models that `name` fits; several for a Hub repository in several versions."""
    from pathlib import Path

    from pamx.models import cached, full_path

    repository, _, revision = name.partition("@")
    path = full_path(name)
    found = [
        model
        for model in cached()
        if name == model.name
        or (model.source == "gguf" and Path(model.name).stem == name)
        or (model.source in ("gguf", "folder") and model.name == path)
        or (model.name == repository and revision and (model.revision or "").startswith(revision))
    ]
    if not found:
        raise _absent(name)
    return found


def _absent(name: str) -> ModelError:
    """That a model is not here; of another kind if the name is none of a model anyway."""
    from pamx.models.source import classify

    kind = ModelError
    try:
        classify(name)
    except NotAModelError:
        kind = NotAModelError
    return kind(
        f"{name or 'A model without a name'} is not on this machine.",
        "`pamx models` lists what is.",
    )


def _what(model: CachedModel, name: str, packed: bool = False) -> str:
    return f"the packed weights of {name}" if packed or model.source == "folder" else name


def _source(model: CachedModel) -> str:
    return f"{model.source}, gone" if model.gone else model.source


def _size(count: int) -> str:
    return bytes_text(count) if count else "-"


def _as_json(model: CachedModel) -> dict[str, str | int | bool | None]:
    return {
        "name": model.name,
        "source": model.source,
        "revision": model.revision,
        "size_bytes": model.size_bytes,
        "packed_bytes": model.packed_bytes,
        "path": str(model.path),
        "gone": model.gone,
    }
