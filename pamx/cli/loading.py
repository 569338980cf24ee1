"""Loading an engine for a command, and saying what its user should know about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pamx.cli import options
from pamx.cli.computed import level_lines, shortfall
from pamx.cli.terminal import note
from pamx.errors import NativeError
from pamx.sizes import counted

if TYPE_CHECKING:
    from pamx.engine import Engine


@dataclass(frozen=True)
class Loading:
    """Which model, and how it is to run: the options that all commands share."""

    model: str | None
    revision: str | None
    trust_remote_code: bool
    context: int | None
    threads: int | None
    compute: options.Compute | None
    kv_dtype: options.KvType
    sequences: int = 1  # that pages should hold at a time, if half of the free memory suffices


def check_name(model: str | None, revision: str | None) -> None:
    """Raises NotAModelError if this can name no model, before anything else is done with it."""
    from pamx.models.source import classify

    classify(model, revision)


def load_engine(wanted: Loading, verbose: bool = False) -> Engine:
    """`pamx.load`, with a line on stderr if the model does not run as it was wanted.

    Args:
        wanted: What to load.
        verbose: Also say what computes each layer.
    """
    import pamx

    if wanted.threads is not None:
        _use_threads(wanted.threads)
    engine = pamx.load(
        wanted.model,
        revision=wanted.revision,
        trust_remote_code=wanted.trust_remote_code,
        context=wanted.context,
        at_most=wanted.sequences,
        compute=None if wanted.compute is None else wanted.compute.value,
        kv_dtype=wanted.kv_dtype.value,
    )
    if verbose:
        for line in level_lines(engine):
            note(line)
    if lack := shortfall(engine, wanted.compute and wanted.compute.value):
        note(lack)
    if not engine.attention.paged:
        note(engine.attention.reason)
    return engine


def _use_threads(count: int) -> None:
    from pamx.native.loader import set_num_threads
    from pamx.native.threads import usable_cpus

    try:
        set_num_threads(count)
    except NativeError as error:
        note(f"--threads changes nothing: {error.message}")
        return
    cpus = usable_cpus()
    if count > cpus:
        note(f"{counted(count, 'thread')} on {counted(cpus, 'CPU')}: slower than {cpus:,}.")
