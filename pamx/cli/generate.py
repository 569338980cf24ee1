"""`pamx generate`: one prompt, one answer; or, with --batch, a file of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pamx.cli import beams as beam_search
from pamx.cli import options, stdin
from pamx.cli.batch import options as batches
from pamx.cli.batch.choices import Format, Order
from pamx.cli.batch.row import Options
from pamx.cli.batch.rows import Defaults
from pamx.cli.batch.run import Job, identity, most_together, run_batch
from pamx.cli.batch.serve import Limits
from pamx.cli.engine_thread import EngineThread
from pamx.cli.loading import Loading, check_name, load_engine
from pamx.cli.statistics import as_json, cut_off, summary
from pamx.cli.terminal import is_terminal, note, write, write_json

if TYPE_CHECKING:
    from pamx.engine import Completion, Delta, Engine


def generate(
    ctx: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The prompt. Text piped in follows it after a blank line, or is the prompt if "
            "this is absent or '-'.",
            callback=options.unicode_text,
            show_default=False,
        ),
    ] = None,
    model: options.Model = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End the answer before this text; may be given several times.",
            callback=options.unicode_texts,
            show_default=False,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is: no chat template.")
    ] = False,
    context: options.Context = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    compute: options.ComputeOption = None,
    kv_dtype: options.KvTypeOption = options.KvType.AUTO,
    beams: beam_search.Beams = None,
    json: options.Json = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Say on standard error what computes each layer of the model; for one prompt, "
            "write statistics there even if it is piped.",
        ),
    ] = False,
    batch: batches.Batch = None,
    output: batches.Output = None,
    format: batches.FormatOption = Format.AUTO,  # noqa: A002
    order: batches.OrderOption = Order.INPUT,
    resume: batches.Resume = False,
    strict: batches.Strict = False,
    max_seqs: batches.MaxSeqs = 16,
    token_budget: batches.TokenBudget = None,
    priority_field: batches.PriorityField = None,
    n: batches.N = 1,
    no_prefix_cache: batches.NoPrefixCache = False,
    quiet: batches.Quiet = False,
) -> None:
    """Answer one prompt, or every row of a file.

    The answer goes to standard output as it comes. Ctrl-C ends it; what has been written stays,
    and the exit status is 130. With --json nothing is written before the end: then one object
    with the text, why it ended, token counts, timing, and what computed attention and the rest
    (with --beams: all answers and their scores).

    \b
    pamx generate "Name three rivers."
    git diff | pamx generate "Write a commit message for this:"
    pamx generate --json "Hello" | jq -r .text

    --batch answers a file of rows at once. Lines are OpenAI batch requests (custom_id, url, body),
    JSON objects with prompt or messages, or plain prompts; JSON rows may set max_tokens,
    temperature and other options for themselves. Each result has custom_id (the line number if a
    row names none), text, finish_reason, usage, timing and error; OpenAI rows get a response, as
    that API writes it. A bad line is reported and has no result, and the others go on. After a
    kill, --resume computes only rows that have no result in --output; a result with an error is
    one: delete its line to try again. A result's fingerprint stands for the prompt, the options,
    --compute and --kv-dtype among them, and the model: --resume refuses a row that has changed
    since. Exit status 1: some row was bad or failed.

    \b
    pamx generate --batch prompts.txt -o results.jsonl
    pamx generate --batch requests.jsonl -o results.jsonl --resume --max-seqs 32
    """
    beam_search.check_usage(ctx, beams)
    batches.check_usage(ctx, batch, output, resume)
    if raw and system is not None:
        raise typer.BadParameter("--raw has no place for a system prompt.", param_hint="--system")

    check_name(model, revision)
    label = model or "the built-in model"

    def load() -> Engine:
        together = 1 if batch is None else most_together(batch, max_seqs, n)
        wanted = Loading(
            model, revision, trust_remote_code, context, threads, compute, kv_dtype, together
        )
        return load_engine(wanted, verbose)

    if batch is not None:
        if n > 1 and temperature == 0 and not quiet:
            note("With --temp 0 all answers to a row are the same.")
        own = Options(
            max_tokens=max_tokens or options.LONGEST_ANSWER,
            n=n,
            stop=tuple(stop or ()),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
        )
        mode = None if compute is None else compute.value
        defaults = Defaults(
            identity(model, revision), own, system, raw, priority_field, mode, kv_dtype.value
        )
        limits = Limits(max_seqs, token_budget, not no_prefix_cache)
        job = Job(batch, output, format, order, resume, strict, quiet, limits)
        if not run_batch(job, defaults, load, label):
            raise typer.Exit(1)
        return

    text = read_prompt(prompt)
    request: Any = text
    if system is not None:
        request = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    if beams is not None:
        beam_search.search(load, label, request, beams, max_tokens, raw, json)
        return

    def start(engine: Engine) -> Iterator[Delta]:
        from pamx.engine import Sampling

        sampling = Sampling(temperature, top_p, top_k, min_p, seed)
        return engine.stream(
            request,
            max_tokens=max_tokens or options.LONGEST_ANSWER,
            sampling=sampling,
            stop=tuple(stop or ()),
            raw=raw,
        )

    with EngineThread(load, label) as thread:
        pieces: list[str] = []
        completion: Completion | None = None

        def finish() -> None:
            answer = "".join(pieces)
            if json:
                write_json(thread.call(lambda engine: as_json(engine, answer, completion)))
            elif answer and not answer.endswith("\n"):
                write("\n")

        try:
            with closing(thread.stream(start)) as deltas:
                for delta in deltas:
                    pieces.append(delta.text)
                    completion = delta.completion or completion
                    if not json:
                        write(delta.text)
        except KeyboardInterrupt:
            if pieces:
                finish()
            raise
        finish()
        if completion and (verbose or is_terminal(sys.stderr)):
            note(summary(completion, max_tokens))
        elif completion and (cut := cut_off(completion, max_tokens)):
            note(cut)


def read_prompt(argument: str | None) -> str:
    """The prompt from the argument, standard input or both."""
    parts = [] if argument in (None, "-") else [argument]
    if argument == "-" or not is_terminal(sys.stdin):
        parts.append(stdin.read())
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise typer.BadParameter("it is empty: give a text, or pipe one in.", param_hint="PROMPT")
    return text
