"""`pamx chat`: a conversation, with a person or with a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from pamx.cli import options, stdin
from pamx.cli.conversation import Conversation
from pamx.cli.engine_thread import EngineThread
from pamx.cli.failures import report
from pamx.cli.loading import Loading, load_engine
from pamx.cli.statistics import cut_off
from pamx.cli.terminal import is_terminal, note
from pamx.errors import OutOfBlocksError, RequestError

if TYPE_CHECKING:
    from pamx.engine import ChatSession, Delta, Engine


def chat(
    name: options.ModelArgument = None,
    model: options.Model = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    context: options.Context = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    compute: options.ComputeOption = None,
    kv_dtype: options.KvTypeOption = options.KvType.AUTO,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Say on standard error what computes each layer of the model."
        ),
    ] = False,
) -> None:
    """Talk with a model.

    On a terminal: Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands. From a pipe:
    each line is one turn of the conversation, answered on standard output in order; blank lines
    are skipped and nothing is a command. If a turn could not be answered, the exit status is 1; an
    answer that the context or --max-tokens cuts off is one.

    \b
    pamx chat
    pamx chat mlx-community/Qwen3-0.6B-4bit --system "Answer in one sentence."
    pamx chat < questions.txt > answers.txt
    """
    if name is not None and model is not None and name != model:
        raise typer.BadParameter("two models are named; give one.", param_hint="--model")
    name = model if name is None else name
    label = name or "the built-in model"

    def load() -> Engine:
        wanted = Loading(name, revision, trust_remote_code, context, threads, compute, kv_dtype)
        return load_engine(wanted, verbose)

    from pamx.models import fetch

    def ask(session: ChatSession, text: str) -> Iterator[Delta]:
        from pamx.engine import Sampling

        sampling = Sampling(temperature, top_p, top_k, min_p, seed)
        return session.ask(text, max_tokens=max_tokens or options.LONGEST_ANSWER, sampling=sampling)

    def start(later: bool = False) -> Conversation:
        return Conversation(EngineThread(load, label, later=later), ask, system)

    # Now, not in the background: a download shows its progress, and a name that is wrong is known
    # before the first question, even if none comes.
    fetch(name, revision=revision)
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        from pamx.cli.repl import talk

        with start(later=True) as conversation:
            talk(conversation, label, max_tokens)
        return
    if is_terminal(sys.stdin):
        note("Each line is a question; Ctrl-D ends.")
    if not _answer_lines(start, max_tokens):
        raise typer.Exit(1)


def _answer_lines(start: Callable[[], Conversation], max_tokens: int | None) -> bool:
    """Answers each line of standard input; returns whether every one could be answered."""
    lines = (line for line in stdin.lines() if line.strip())
    first = next(lines, None)
    if first is None:
        return True
    complete = True
    with start() as conversation:
        conversation.open()
        for line in chain([first], lines):
            try:
                completion = conversation.answer(line)
                if completion and (cut := cut_off(completion, max_tokens)):
                    note(cut)
            except (RequestError, OutOfBlocksError) as error:
                report(error)
                complete = False
    return complete
