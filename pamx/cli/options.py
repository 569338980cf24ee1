"""Options that several commands share, each declared once."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer


def complete_model(incomplete: str) -> list[str]:
    """Names of the models on this machine that start with what has been typed."""
    try:
        from pamx.models import DEFAULT_MODEL, cached

        names = {DEFAULT_MODEL, *(model.name for model in cached())}
    except Exception:  # a shell waits for this: no name is better than an error
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def unicode_text(value: str | None) -> str | None:
    """Refuses an argument whose bytes were not valid in the locale's encoding."""
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter("it is not valid UTF-8.") from error
    return value


def unicode_texts(values: list[str] | None) -> list[str] | None:
    for value in values or []:
        unicode_text(value)
    return values


def seed_of_64_bits(value: int | None) -> int | None:
    if value is not None and value >= 2**64:
        raise typer.BadParameter(f"{value} has more than 64 bits.")
    return value


def number(
    *names: str,
    metavar: str,
    help: str,  # noqa: A002
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    show_default: bool | str = True,
) -> Any:
    """An option that takes a finite number in a range, which its help says too.

    Typer's own ranges have no open ends, and call what is not a number too small.

    Args:
        names: With their dashes; none for the parameter's.
        metavar: What help calls the number.
        help: Without the range.
        least: At least this; or `above`: more than this.
        most: At most this.
        show_default: Whether help shows the default; a text says it in words.
    """
    parts = [f"at least {least:g}"] if least is not None else []
    parts += [f"more than {above:g}"] if above is not None else []
    parts += [f"at most {most:g}"] if most is not None else []
    bounds = " and ".join(parts)

    def check(value: float | None) -> float | None:
        if value is None:
            return None
        fits = (
            math.isfinite(value)
            and (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
        )
        if not fits:
            raise typer.BadParameter(f"it is {value:g}; it must be a number, {bounds}.")
        return value

    return typer.Option(
        *names,
        metavar=metavar,
        help=f"{help} {bounds.capitalize()}.",
        show_default=show_default,
        callback=check,
    )


# A small model can go round in circles for ever; nobody asks for more without knowing.
LONGEST_ANSWER = 1024

MODEL_HELP = "Built-in model, Hub repository (org/name[@revision]), model folder or .gguf file."
_BUILT_IN = "the built-in model"

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help=MODEL_HELP,
        show_default=_BUILT_IN,
        autocompletion=complete_model,
        callback=unicode_text,
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=MODEL_HELP,
        show_default=_BUILT_IN,
        autocompletion=complete_model,
        callback=unicode_text,
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="System prompt: how the model should behave.", callback=unicode_text
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Longest answer, in tokens.",
        show_default=str(LONGEST_ANSWER),
    ),
]
Temperature = Annotated[
    float,
    number(
        "--temp",
        least=0,
        metavar="T",
        help="Sampling temperature; 0 takes the likeliest token.",
    ),
]
TopP = Annotated[
    float,
    number(
        above=0,
        most=1,
        metavar="P",
        help="Sample from the likeliest tokens that together have this probability; 1: all.",
    ),
]
TopK = Annotated[
    int, typer.Option(min=0, metavar="K", help="Sample from the K likeliest tokens; 0: all.")
]
MinP = Annotated[
    float,
    number(
        least=0,
        most=1,
        metavar="P",
        help="Drop tokens less likely than P times the likeliest; 0: none.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**64 - 1,
        metavar="N",
        help="Makes sampling repeatable.",
        show_default="a new one each time",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Tokens of prompt and answer to hold in memory.",
        show_default="the model's own, as far as memory allows",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        metavar="N",
        help="Threads that compute on the CPU.",
        show_default="PAMX_NUM_THREADS, else the CPUs that this process may use",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(metavar="REV", help="Branch, tag or commit of a Hub repository."),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run Python code that comes with the model. Unsafe: read it."
    ),
]


class Compute(StrEnum):
    FAST = "fast"
    EXACT = "exact"
    MLX = "mlx"


class KvType(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


ComputeOption = Annotated[
    Compute | None,
    typer.Option(
        "--compute",
        metavar="MODE",
        help="How the model is computed on a CPU. fast: pamx's kernels, with activations rounded "
        "to 8 bits (15 where it matters most) for quantised weights: quickest, answers may differ "
        "slightly from mlx-lm's. exact: the same kernels in float32: mlx-lm's numbers up to "
        "rounding. mlx: MLX's operations for all but attention: slowest, for comparison.",
        show_default="fast; mlx where pamx's native library does not serve",
    ),
]
KvTypeOption = Annotated[
    KvType,
    typer.Option(
        "--kv-dtype",
        metavar="TYPE",
        help="What the KV cache holds: float32, float16, bfloat16, or auto: the model's own type, "
        "and float16 for a float32 model with --compute fast.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
