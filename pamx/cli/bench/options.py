"""The options of `pamx bench` that no other command has."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pamx.cli import options
from pamx.native.step_limits import MOST_SEQUENCES


class Format(StrEnum):
    TABLE = "table"
    MD = "md"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"


_NUMBERS = "a list such as 256,1024 or a range such as 1-4 or 1024-8192*2"

Contexts = Annotated[
    str,
    typer.Option(
        "--context",
        metavar="LIST",
        help=f"Tokens of a sequence, prompt and answer together: {_NUMBERS}.",
    ),
]
Batches = Annotated[
    str, typer.Option("--batch", metavar="LIST", help=f"Sequences at a time: {_NUMBERS}.")
]
Partitions = Annotated[
    str,
    typer.Option(
        "--partition",
        metavar="LIST",
        help="Tokens of context that attention takes at a time, to be compared: auto (what pamx "
        f"chooses), numbers, or {_NUMBERS}. Multiples of 16, and of the page size.",
    ),
]
BlockSizes = Annotated[
    str, typer.Option("--block-size", metavar="LIST", help="Tokens a page: of 8, 16 and 32.")
]
KvDtypes = Annotated[
    str,
    typer.Option(
        "--kv-dtype",
        metavar="LIST",
        help="What pages hold: of auto, float32, float16 and bfloat16.",
    ),
]
OutputTokens = Annotated[
    int, typer.Option("--output-tokens", min=1, metavar="N", help="Tokens of each answer.")
]
Seed = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Of prompts, of arrivals and of the order in which arms take turns.",
        callback=options.seed_of_64_bits,
    ),
]
Against = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PROGRAM",
        help="Compare with this in the same run; may be given several times. mlx-lm: its dense "
        "cache on the same weights. Else a command that speaks the protocol of "
        "`pydoc pamx.bench.protocol`; one that says nothing for ten minutes has failed.",
        callback=options.unicode_texts,
        show_default=False,
    ),
]
Control = Annotated[
    bool,
    typer.Option(
        "--control/--no-control",
        help="Measure the first arm twice, as if it were two: how far equal arms lie apart here.",
    ),
]
Time = Annotated[
    float | None,
    options.number(
        "--time",
        metavar="SECONDS",
        help="Stop after this long, loading aside. How long verdicts take is said after the first "
        "warm-up. A verdict needs three rounds, in each of which every arm has two turns; a "
        "workload that has no room for them is left to --resume. Only the first one is measured in "
        "any case, and by what fits. Not with --arrivals or --trace, which take as "
        "long as their requests do.",
        least=0,
        show_default="twice what verdicts need, from 2 to 10 minutes",
    ),
]
Precision = Annotated[
    float,
    options.number(
        "--precision",
        metavar="PERCENT",
        help="Stop repeating before --time is over where intervals reach no further than this.",
        least=0.1,
        most=100,
    ),
]
Slo = Annotated[
    str | None,
    typer.Option(
        metavar="LIMITS",
        help="Count requests that meet these as goodput, such as ttft=500ms,tpot=50ms; limits of "
        "ttft, tpot and e2e. With --arrivals or --trace, of what arrived; else of each workload's "
        "requests, which are submitted all at once.",
        show_default=False,
    ),
]
Kernel = Annotated[
    bool,
    typer.Option(
        "--kernel",
        help="Measure the attention call alone, beside this machine's plain read and copy of as "
        "many bytes.",
    ),
]
Heads = Annotated[
    str | None,
    typer.Option(
        metavar="Q,KV,DIM",
        help="With --kernel: query heads, KV heads and head size, instead of the model's.",
        show_default=False,
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Replay requests from JSON lines: arrival_s (seconds), prompt_tokens or prompt, "
        "output_tokens.",
        show_default=False,
    ),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Replay made-up requests: poisson:RATE (requests a second), or bursts:N@SECONDS.",
        show_default=False,
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        min=1,
        max=100_000,
        metavar="N",
        help="With --arrivals: how many.",
    ),
]
PromptLengths = Annotated[
    str,
    typer.Option(
        "--prompt-tokens",
        metavar="LENGTHS",
        help="With --arrivals: a number, uniform:a-b, or lognormal:MEDIAN,SIGMA.",
    ),
]
AnswerLengths = Annotated[
    str,
    typer.Option(
        "--answer-tokens",
        metavar="LENGTHS",
        help="With --arrivals: likewise, of answers.",
    ),
]
MaxSeqs = Annotated[
    int,
    typer.Option(
        min=1,
        max=MOST_SEQUENCES,
        metavar="N",
        help="With --trace or --arrivals: most answers in progress at a time.",
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="table, md, csv, json (with raw samples) or jsonl.",
        show_default="the ending of --output if it is one of these, else table",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the report there, and nothing to standard output; a .json file is kept up to "
        "date after every workload, and `pamx bench show FILE` shows it.",
        show_default="standard output",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw the figures: .png, .svg or .html. Needs pamx[plots].",
        show_default=False,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Continue the interrupted run in this .json file, as it was planned.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress, and no definitions under tables.")
]
