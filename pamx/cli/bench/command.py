"""The command: options to a plan, the plan to its measurement, the record to its reader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pamx.cli import options
from pamx.cli.bench import options as own
from pamx.cli.bench.last import last_run
from pamx.cli.bench.progress import Progress
from pamx.cli.bench.signals import EndedError, ending_signals
from pamx.cli.bench.targets import check_target, fault
from pamx.cli.failures import FAILED, ToldInterrupt, as_given
from pamx.cli.terminal import note, say
from pamx.errors import NotAModelError, PamxError, RequestError

if TYPE_CHECKING:
    from pamx.bench.record import Record
    from pamx.bench.workload import Arm
    from pamx.cli.bench.deliver import Delivery

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
T = TypeVar("T")

Save = Callable[["Record"], None]
Measure = Callable[["Record", Save, Progress, Callable[[str], None]], None]

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A .json file of `pamx bench`.",
        show_default="the latest run",
    ),
]


@app.callback()
def bench(
    ctx: typer.Context,
    model: options.Model = None,
    context: own.Contexts = "256,1024",
    batch: own.Batches = "1,4",
    partition: own.Partitions = "auto",
    block_size: own.BlockSizes = "16",
    kv_dtype: own.KvDtypes = "auto",
    output_tokens: own.OutputTokens = 32,
    against: own.Against = None,
    kernel: own.Kernel = False,
    heads: own.Heads = None,
    trace: own.Trace = None,
    arrivals: own.Arrivals = None,
    requests: own.Requests = 32,
    prompt_tokens: own.PromptLengths = "lognormal:128,0.7",
    answer_tokens: own.AnswerLengths = "lognormal:32,0.5",
    max_seqs: own.MaxSeqs = 16,
    slo: own.Slo = None,
    control: own.Control = True,
    time: own.Time = None,
    precision: own.Precision = 3.0,
    seed: own.Seed = 0,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    compute: options.ComputeOption = None,
    format: own.FormatOption = None,  # noqa: A002
    output: own.Output = None,
    plot: own.Plot = None,
    resume: own.Resume = None,
    quiet: own.Quiet = False,
    json: own.Json = False,
) -> None:
    """Measure speed, and compare.

    Every context with every batch is a workload, and every way to run it an arm: partitions,
    page sizes, KV types, other programs. All arms of a workload take turns in mirrored, random
    order, each program in a process of its own that loads once; what they answer is compared token
    for token before a figure is shown. Figures come with intervals, comparisons with a verdict. The
    first arm is measured twice, to show how far equal arms lie apart.

    \b
    pamx bench
    pamx bench --partition auto,64,128 --context 1024-4096*2 --batch 1,4,16 --plot bench.html
    pamx bench --against mlx-lm --context 128 --batch 1 --output-tokens 16
    pamx bench --kernel --context 8192 --batch 1,8
    pamx bench --arrivals poisson:2 --requests 40 --slo ttft=500ms,tpot=50ms

    Ctrl-C keeps the workloads that were finished, and so does the end of --time; --resume measures
    the rest. Exit status: 0 done, or out of time (then standard error says so, and "complete" is
    false in the JSON), 1 a program could not start or failed, or a file is damaged, 2 what was
    asked for cannot be measured, 130 interrupted.
    """
    from pamx.cli.bench import choose

    given = choose.given_options(ctx)
    if ctx.invoked_subcommand is not None:
        choose.check_none(given, ctx.invoked_subcommand)
        return
    from pamx.bench.ranges import whole_numbers
    from pamx.cli.bench.deliver import delivery

    choose.check_together(given)
    to = delivery(choose.form(format, json), output, plot, quiet)
    if resume is not None:
        _resume(resume, to, time)
        return
    from pamx.bench.sweep import ModelChoice

    contexts, batches = (
        choose.read_option(option, text, whole_numbers)
        for option, text in (("--context", context), ("--batch", batch))
    )
    limits = choose.slo(slo)
    replays = trace is not None or arrivals is not None
    arms = _arms(partition, block_size, kv_dtype, against or [], control and not replays)
    chosen = ModelChoice(
        model, revision, trust_remote_code, None if compute is None else compute.value, threads
    )
    settings = {name: value for name, value in ctx.params.items() if value is not None}
    record_settings = {k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}
    measure: Measure
    if kernel:
        kind, plan, measure = _kernel(
            heads, chosen, contexts, batches, arms, (time, precision / 100, seed), threads
        )
    elif replays:
        made = _arrivals(trace, arrivals, requests, prompt_tokens, answer_tokens, seed)
        _fetched(chosen)
        kind, plan, measure = _replay(chosen, arms, made, max_seqs, seed, limits)
    else:
        choose.check_lengths(contexts, output_tokens)
        _fetched(chosen)
        shapes = contexts, batches, output_tokens
        kind, plan, measure = _sweep(chosen, shapes, arms, (time, precision / 100, seed), limits)
    from pamx.bench.provenance import provenance
    from pamx.bench.record import new_record

    command = ["pamx", *sys.argv[1:]]
    record = new_record(kind, provenance(command, seed, record_settings), plan)
    _measured(record, measure, to, to.output if to.form.value == "json" else None)


def _arms(
    partition: str, block_size: str, kv_dtype: str, against: list[str], control: bool
) -> list[Arm]:
    from pamx.bench.workload import arms
    from pamx.cli.bench import choose

    names = list(dict.fromkeys(name.strip() for name in against))
    if not all(names):
        raise typer.BadParameter("it is empty: name mlx-lm, or a command.", param_hint="--against")
    for name in names:
        choose.check_command(name)
    partitions = choose.read_option("--partition", partition, choose.partitions)
    block_sizes = choose.read_option("--block-size", block_size, choose.block_sizes)
    choose.check_partitions(partitions, block_sizes)
    return arms(
        partitions,
        block_sizes,
        choose.read_option("--kv-dtype", kv_dtype, choose.kv_dtypes),
        names,
        control,
    )


def _fetched(model: Any) -> Path:
    """The model's folder; fetched here, where its progress can be seen."""
    from pamx import models

    try:
        return models.fetch(model.name, revision=model.revision)
    except NotAModelError as error:
        hint = "--model" if model.revision is None else "--model and --revision"
        raise typer.BadParameter(str(error), param_hint=hint) from error


def _sweep(
    model: Any,
    shapes: tuple[list[int], list[int], int],
    arms: list[Arm],
    patience: tuple[float | None, float, int],
    limits: dict[str, float],
) -> tuple[str, dict[str, Any], Measure]:
    from pamx.bench.sweep import SweepPlan, sweep
    from pamx.bench.workload import workloads

    plan = SweepPlan(model, workloads(*shapes), arms, *patience, limits)
    return "sweep", plan.as_json(), lambda *rest: sweep(plan, *rest)


def _kernel(
    heads: str | None,
    model: Any,
    contexts: list[int],
    batches: list[int],
    arms: list[Arm],
    patience: tuple[float | None, float, int],
    threads: int | None,
) -> tuple[str, dict[str, Any], Measure]:
    from pamx.bench.kernel import KernelPlan, kernel_arms, measure_kernel, model_heads
    from pamx.bench.workload import workloads
    from pamx.cli.bench import choose

    if heads is None:
        try:
            shape = model_heads(_fetched(model))
        except RequestError as error:
            raise typer.BadParameter(str(error), param_hint="--model") from error
    else:
        shape = choose.read_option("--heads", heads, choose.heads)
    plan = KernelPlan(shape, workloads(contexts, batches, 1), kernel_arms(arms), *patience, threads)
    return "kernel", plan.as_json(), lambda *rest: measure_kernel(plan, *rest)


def _arrivals(
    trace: Path | None,
    pattern: str | None,
    count: int,
    prompts: str,
    answers: str,
    seed: int,
) -> list[Any]:
    from pamx.bench.arrivals import LONGEST_LINE, lengths, make_arrivals, read_trace
    from pamx.cli.bench import choose

    if trace is not None:
        try:
            with as_given(trace), trace.open("rb") as stream:
                lines = iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
                return read_trace(lines, str(trace))
        except RequestError as error:
            raise typer.BadParameter(str(error), param_hint="--trace") from error
    assert pattern is not None
    drawn = (
        choose.read_option("--prompt-tokens", prompts, lengths),
        choose.read_option("--answer-tokens", answers, lengths),
    )
    return choose.read_option(
        "--arrivals", pattern, lambda text: make_arrivals(text, count, *drawn, seed)
    )


def _replay(
    model: Any,
    arms: list[Arm],
    arrivals: list[Any],
    max_seqs: int,
    seed: int,
    limits: dict[str, float],
) -> tuple[str, dict[str, Any], Measure]:
    from pamx.bench.replay import ReplayPlan, replay

    plan = ReplayPlan(model, arms, arrivals, max_seqs, seed, limits)
    return "replay", plan.as_json(), lambda *rest: replay(plan, *rest)


def _resume(path: Path, to: Delivery, seconds: float | None) -> None:
    from pamx.bench.kernel import KernelPlan, measure_kernel
    from pamx.bench.record import DamagedError
    from pamx.bench.sweep import SweepPlan, sweep

    record = _loaded(path, "--resume")
    check_target("--resume", path)
    if record["complete"]:
        raise typer.BadParameter(
            f"{path} is complete: `pamx bench show {path}` shows it.", param_hint="--resume"
        )
    if record["kind"] == "replay":
        raise typer.BadParameter(
            "a replay cannot be continued: its requests depend on each other. Run it again.",
            param_hint="--resume",
        )
    if seconds is not None:
        record["plan"]["seconds"] = seconds
    measure: Measure
    try:
        if record["kind"] == "kernel":
            kernel = KernelPlan.from_json(record["plan"])
            measure = lambda *rest: measure_kernel(kernel, *rest)  # noqa: E731
        else:
            plan = SweepPlan.from_json(record["plan"])
            measure = lambda *rest: sweep(plan, *rest)  # noqa: E731
    except (KeyError, TypeError) as error:
        raise DamagedError(path, "its plan cannot be read") from error
    _measured(record, measure, to, path)


def _measured(record: Record, measure: Measure, to: Delivery, kept: Path | None) -> None:
    """Measures and delivers; what was finished before an interruption or a failure too.

    Args:
        kept: Where the record is saved after every workload, besides the file of the latest run.
    """
    from pamx.bench.record import save
    from pamx.bench.sweep import UnfitError
    from pamx.bench.words import missing

    progress = Progress(to.quiet)
    with suppress(OSError):  # told below
        last_run().parent.mkdir(parents=True, exist_ok=True)
    latest = None if fault(last_run()) else last_run()
    file = kept or latest
    if latest is None:
        lost = "" if kept else " nor for --resume: -o FILE.json would keep it"
        note(f"This run is not kept for `pamx bench show`{lost}: {fault(last_run())}")

    def keep(found: Record) -> None:
        if latest is not None:
            with suppress(PamxError):  # a copy; what was asked for is in `kept` and on stdout
                save(found, latest)
        if kept is not None:
            save(found, kept)

    try:
        with ending_signals():
            measure(record, keep, progress, progress.tell)
    except UnfitError as error:
        progress.clear()
        raise typer.BadParameter(str(error), param_hint=error.option) from error
    except (KeyboardInterrupt, PamxError) as error:
        progress.clear()
        if not record["cells"] and isinstance(error, KeyboardInterrupt):
            say("Interrupted: nothing was finished, nothing was written.")
        if record["cells"]:
            with suppress(KeyboardInterrupt):  # a second one: what is kept is said all the same
                _deliver(record, to)
            if record["kind"] != "replay" and file is not None:
                ended = "Interrupted: " if isinstance(error, KeyboardInterrupt) else ""
                note(f"{ended}`pamx bench --resume {file}` measures the rest.")
        if isinstance(error, EndedError):
            raise typer.Exit(error.status) from error
        replayed = record["cells"] and record["kind"] == "replay"
        if isinstance(error, KeyboardInterrupt) and not replayed:
            raise ToldInterrupt from error
        raise
    progress.clear()
    _deliver(record, to)
    if not record["complete"]:
        told = to.output is not None or to.form.value in ("table", "md")  # in the report
        rest = f" `pamx bench --resume {file}` measures the rest; a longer --time may go with it."
        what = "Out of time, so the run is not complete"
        what += "." if told else f": {missing(record)}."
        note(f"{what}{rest if file is not None else ''}")
    if any(cell.get("failed") for cell in record["cells"]):
        raise typer.Exit(FAILED)


def _deliver(record: Record, to: Delivery) -> None:
    from pamx.cli.bench.deliver import deliver

    deliver(record, to)


def _loaded(path: Path, option: str = "FILE") -> Record:
    from pamx.bench.record import load

    try:
        with as_given(path):
            return load(path)
    except RequestError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


@app.command()
def show(
    file: File = None,
    format: own.FormatOption = None,  # noqa: A002
    output: own.Output = None,
    plot: own.Plot = None,
    quiet: own.Quiet = False,
    json: own.Json = False,
) -> None:
    """Show a run again, in any form, without measuring anything."""
    from pamx.cli.bench import choose
    from pamx.cli.bench.deliver import delivery

    to = delivery(choose.form(format, json), output, plot, quiet)
    if file is None and not last_run().exists():
        raise typer.BadParameter("nothing has been measured yet: name a file.", param_hint="FILE")
    _deliver(_loaded(file or last_run()), to)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A .json file.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    format: own.FormatOption = None,  # noqa: A002
    output: own.Output = None,
    plot: own.Plot = None,
    quiet: own.Quiet = False,
    json: own.Json = False,
) -> None:
    """Compare two runs: the speed of B relative to A.

    Samples of two runs are not paired, and the machine may have changed in between: compare arms
    within one run where that is possible.
    """
    from pamx.bench.compare import compare as compared
    from pamx.cli.bench import choose
    from pamx.cli.bench.deliver import deliver_comparison, delivery

    to = delivery(choose.form(format, json), output, plot, quiet)
    a, b = _loaded(first, "A"), _loaded(second, "B")
    try:
        found = compared(a, b, (str(first), str(second)))
    except RequestError as error:
        raise typer.BadParameter(str(error), param_hint="B") from error
    deliver_comparison(found, to)
