"""From options to a plan: lists are read, and what does not go together is refused in words."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from collections.abc import Callable
from typing import TypeVar

import typer

from pamx.bench.arrivals import BadPatternError
from pamx.bench.ranges import BadRangeError, whole_numbers
from pamx.bench.slo import BadLimitError, limits
from pamx.cli.bench.options import Format

T = TypeVar("T")

BLOCK_SIZES = (8, 16, 32)
KV_DTYPES = ("auto", "float32", "float16", "bfloat16")
LARGEST_PARTITION = 1 << 20
MOST_HEADS = 1024


def read_option(option: str, text: str, read: Callable[[str], T]) -> T:
    """`read(text)`, with its complaint as a usage error of the option."""
    try:
        return read(text)
    except (BadRangeError, BadLimitError, BadPatternError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def partitions(text: str) -> list[int | None]:
    """None stands for auto."""
    found: dict[int | None, None] = {}
    for part in text.split(","):
        if part.strip() == "auto":
            found[None] = None
        else:
            found.update(dict.fromkeys(whole_numbers(part)))
    for number in found:
        if number is not None and number > LARGEST_PARTITION:
            raise BadRangeError(f"{number} is more than {LARGEST_PARTITION:,} tokens.")
    return list(found)


def check_partitions(partitions: list[int | None], block_sizes: list[int]) -> None:
    """Raises a usage error if blocks of some size cannot have a partition."""
    from pamx.native.partitions import against_partition

    for number, size in itertools.product(partitions, block_sizes):
        if number is not None and (why := against_partition(number, size)):
            raise typer.BadParameter(f"{number} does not go: {why}.", param_hint="--partition")


def block_sizes(text: str) -> list[int]:
    found = whole_numbers(text)
    for size in found:
        if size not in BLOCK_SIZES:
            raise BadRangeError(f"{size} is no page size; pages have 8, 16 or 32 tokens.")
    return found


def kv_dtypes(text: str) -> list[str]:
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in found:
        if name not in KV_DTYPES:
            raise BadRangeError(f"{name!r} is not one of {', '.join(KV_DTYPES)}.")
    return found


def heads(text: str) -> tuple[int, int, int]:
    """Query heads, KV heads, head size."""
    parts = text.split(",")
    if len(parts) != 3 or not all(re.fullmatch(r"\s*\d{1,9}\s*", p, re.ASCII) for p in parts):
        raise BadRangeError(f"{text!r} is not three numbers such as 32,8,128.")
    query, kv, dim = (int(p) for p in parts)
    if query > MOST_HEADS:
        raise BadRangeError(f"{query} query heads are more than {MOST_HEADS}.")
    if not (query and kv and dim) or query % kv:
        raise BadRangeError(f"{query} query heads cannot share {kv} KV heads evenly.")
    if dim % 8 or dim > 256:
        raise BadRangeError(f"a head size of {dim} is not a multiple of 8 up to 256.")
    return query, kv, dim


def slo(text: str | None) -> dict[str, float]:
    return {} if text is None else read_option("--slo", text, limits)


def check_command(text: str) -> None:
    """Raises a usage error if `--against` names a program that is not there."""
    if text == "mlx-lm":
        return
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no command line: {error}.", param_hint="--against"
        ) from error
    if not words or shutil.which(words[0]) is None:
        raise typer.BadParameter(
            f"there is no program {words[0] if words else text!r} that can be run: check its path "
            "and that it may be executed.",
            param_hint="--against",
        )


def check_lengths(contexts: list[int], output: int) -> None:
    """Raises a usage error if a context has no room for a prompt."""
    for context in contexts:
        if context <= output:
            raise typer.BadParameter(
                f"a context of {context} tokens has no room for a prompt before {output} tokens "
                "of answer: take longer contexts, or fewer --output-tokens.",
                param_hint="--context",
            )


def form(format: Format | None, json: bool) -> Format | None:  # noqa: A002
    """The form that --format or --json asks for; a usage error if they disagree."""
    if json and format not in (None, Format.JSON):
        raise typer.BadParameter(f"it does not go with --format {format}.", param_hint="--json")
    return Format.JSON if json else format


def given_options(ctx: typer.Context) -> dict[str, str]:
    """The parameters that the command line names, with their option's name."""
    found = {}
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            found[str(parameter.name)] = max(parameter.opts, key=len)
    return found


def check_none(given: dict[str, str], command: str) -> None:
    """Options of a measurement say nothing to `bench show` and `bench compare`."""
    for option in given.values():
        raise typer.BadParameter(
            f"it stands before {command}: options of {command} come after it.", param_hint=option
        )


_ONLY_REPLAY = ("requests", "prompt_tokens", "answer_tokens")
_NEVER_REPLAY = ("context", "batch", "output_tokens", "time", "precision", "control", "against")
_NEVER_KERNEL = ("output_tokens", "against", "slo")
_WITH_RESUME = ("resume", "output", "format", "json", "plot", "quiet", "time")


def check_together(given: dict[str, str]) -> None:
    """Raises a usage error for options that do not go together."""

    def refuse(name: str, reason: str) -> None:
        raise typer.BadParameter(reason, param_hint=given[name])

    replay = "trace" in given or "arrivals" in given
    if "resume" in given:
        for name in given:
            if name not in _WITH_RESUME:
                refuse(name, "--resume continues a run as it was planned, but for --time.")
    if "trace" in given and "arrivals" in given:
        refuse("arrivals", "--trace has arrivals already.")
    if "kernel" in given and replay:
        refuse("kernel", "an attention call alone has no arrivals to replay.")
    if "heads" in given and "kernel" not in given:
        refuse("heads", "it needs --kernel: a model has heads of its own.")
    for name in _ONLY_REPLAY:
        if name in given and "arrivals" not in given:
            refuse(name, "it needs --arrivals.")
    if "max_seqs" in given and not replay:
        refuse("max_seqs", "it needs --trace or --arrivals; elsewhere --batch says it.")
    for names, mode, words in (
        (_NEVER_REPLAY, replay, "--trace or --arrivals"),
        (_NEVER_KERNEL, "kernel" in given, "--kernel"),
    ):
        for name in names:
            if mode and name in given:
                refuse(name, f"it has no meaning beside {words}.")
