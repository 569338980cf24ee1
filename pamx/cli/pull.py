"""`pamx pull`: make a model present on this machine."""

from __future__ import annotations

from pamx.cli import options
from pamx.cli.terminal import write


def pull(model: options.ModelArgument = None, revision: options.Revision = None) -> None:
    """Download a model and print its folder.

    A model that is here is only checked; a download that was interrupted continues where it
    stopped.

    \b
    pamx pull
    pamx pull mlx-community/Qwen3-0.6B-4bit --revision main
    """
    from pamx.models import fetch

    write(f"{fetch(model, revision=revision)}\n")
