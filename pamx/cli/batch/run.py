"""One run of a batch: opening what it needs, following its events, ending it in every case."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pamx.cli.batch.choices import Format, Order
from pamx.cli.batch.earlier import unfinished
from pamx.cli.batch.feed import Feed
from pamx.cli.batch.interrupt import interrupt_as_event
from pamx.cli.batch.lines import count_lines, lines_text
from pamx.cli.batch.output import ResultFile, Stdout
from pamx.cli.batch.progress import Progress
from pamx.cli.batch.results import result
from pamx.cli.batch.row import BadRow, Notice, Row, RowEvent
from pamx.cli.batch.rows import Defaults, read_rows
from pamx.cli.batch.serve import Event, Finished, Limits, Tick, serve
from pamx.cli.batch.summary import table
from pamx.cli.computed import computed_by
from pamx.cli.engine_thread import EngineThread
from pamx.cli.failures import ToldInterrupt, as_given
from pamx.cli.terminal import is_terminal, note
from pamx.errors import PamxError, RequestError
from pamx.sizes import counted

if TYPE_CHECKING:
    from pamx.engine import Engine
    from pamx.engine.batch import BatchStats


@dataclass(frozen=True)
class Job:
    """What to read, where to write and how to behave.

    Attributes:
        file: The batch file; "-" is standard input.
        output: The results file; None or "-": standard output.
    """

    file: str
    output: str | None
    format: Format
    order: Order
    resume: bool
    strict: bool
    quiet: bool
    limits: Limits


def identity(model: str | None, revision: str | None) -> str:
    """What a model is called in fingerprints, wherever the command is run."""
    from pamx.models import DEFAULT_MODEL

    name = model or DEFAULT_MODEL
    name = str(Path(name).resolve()) if model and Path(model).exists() else name
    return name if revision is None else f"{name}@{revision}"


def run_batch(job: Job, defaults: Defaults, load: Callable[[], Engine], label: str) -> bool:
    """Answers every row that has no result yet.

    Args:
        job: The files and the behaviour.
        defaults: What holds for rows that say nothing else.
        load: Makes the engine; called only if there is a row to answer.
        label: What a person calls the model.

    Returns:
        Whether every row of the file has been answered, now or earlier.

    Raises:
        RequestError: a file cannot be used as asked.
        OSError: a file cannot be read.
        PamxError: the model cannot be loaded, or the results cannot be written; or a row is bad
            and `job.strict`.
        KeyboardInterrupt: Ctrl-C; the finished rows whose turn had come have been written.
    """
    name = "standard input" if job.file == "-" else job.file
    stream = _open(job.file)
    with _output(job) as output:
        earlier = output.earlier
        before = len(earlier)
        failed_before: list[int] = []
        rows = _read(job, stream, name, defaults)
        rows = unfinished(rows, earlier, name, job.output or "", failed_before)
        if job.file == "-" and is_terminal(sys.stdin):
            note("Each line is a row; Ctrl-D ends.")
        run = _Run(job, name, output, _progress(job, before, defaults.options.n))
        run.answer(Feed(rows), load, label, before)
    run.conclude(before, failed_before, len(earlier))
    if run.interrupted:
        raise ToldInterrupt
    return not (run.failed or run.bad or failed_before)


def most_together(file: str, max_seqs: int, n: int) -> int:
    """Answers that can be in progress at a time: fewer than `max_seqs` if the file is short.

    Args:
        n: Answers to a row. Rows of JSON may ask for more, which then share the pages.
    """
    if not Path(file).is_file():  # a pipe
        return max_seqs
    with Path(file).open("rb") as stream:
        return max(1, min(max_seqs, n * count_lines(stream, file)))


class _Run:
    """The events of a run become results, messages and counts."""

    def __init__(
        self, job: Job, name: str, output: Stdout | ResultFile, progress: Progress
    ) -> None:
        self.progress = progress
        self.interrupted = False
        self._job = job
        self._name = name
        self._output = output
        self.failed: list[int] = []  # lines of the file
        self.bad: list[int] = []
        self._model = self._computed_by = ""
        self._ttft: list[float] = []

    def answer(
        self,
        feed: Feed[RowEvent],
        load: Callable[[], Engine],
        label: str,
        before: int,
    ) -> None:
        """Answers the rows of the feed; shows the table of what was done, if anything was."""
        first = self._first_row(feed)
        if first is None:
            return
        stats: list[BatchStats] = []
        try:
            with EngineThread(load, label) as thread:
                self._model = thread.call(lambda engine: engine.name)
                self._computed_by = thread.call(computed_by)
                self.progress.restart()
                with interrupt_as_event() as stop:

                    def events(engine: Engine) -> Iterator[Event]:
                        return serve(
                            engine,
                            first,
                            feed,
                            self._job.limits,
                            in_order=self._job.order is Order.INPUT,
                            stop=stop,
                            keep_stats=stats.append,
                        )

                    with closing(thread.stream(events)) as stream:
                        for event in stream:
                            self._handle(event)
                    self.interrupted = stop.is_set()
        finally:
            self.progress.clear()
            if stats and not self._job.quiet and self.progress.done + self.progress.failed:
                seconds = self.progress.seconds
                self.progress.say(
                    table(self.progress, seconds, stats[0], self._ttft, before, self._computed_by)
                )

    def conclude(self, before: int, failed_before: list[int], strangers: int) -> None:
        """Says what the exit status alone would not.

        Args:
            before: Results that an earlier run left.
            failed_before: Lines of the rows whose results are errors.
            strangers: Results of no row in the file.
        """
        progress, job = self.progress, self._job
        if self.interrupted:
            resumable = job.output not in (None, "-")
            more = " The same command with --resume continues." if resumable else ""
            progress.say(f"Interrupted.{more}")
            return
        if strangers:
            verb = "belongs" if strangers == 1 else "belong"
            what = counted(strangers, "result")
            progress.say(f"{what} in {job.output} {verb} to no row here.")
        troubles = [
            (self.failed, "failed"),
            (failed_before, "failed in an earlier run"),
            (self.bad, "bad"),
        ]
        parts = [f"{len(at):,} {word} ({lines_text(at)})" for at, word in troubles if at]
        if parts:
            count = progress.done + len(self.failed) + len(self.bad) + before - strangers
            rows = counted(count, "row")
            progress.say(f"Not every row was answered. Of {rows}, {', '.join(parts)}.")
        elif not (progress.done or before or job.quiet):
            progress.say(f"There are no rows in {self._name}.")
        elif not (progress.done or job.quiet):
            progress.say(f"Nothing to do: {job.output} has all results.")

    def _first_row(self, feed: Feed[RowEvent]) -> Row | None:
        while not feed.exhausted:
            item = feed.take(1.0)
            if isinstance(item, Row):
                return item
            if item is not None:
                self._handle(item)
        return None

    def _handle(self, event: Event) -> None:
        progress = self.progress
        match event:
            case Finished():
                if isinstance(self._output, Stdout):
                    progress.clear()  # both may be the same terminal
                self._output.write(result(event, self._model))
                if event.error is None:
                    progress.done += 1
                    self._ttft.append(min(one.ttft for one in event.samples if one is not None))
                else:
                    progress.failed += 1
                    self.failed.append(event.row.line)
                    progress.say(f"{self._name}:{event.row.line}: {event.error.message}")
            case BadRow(line, reason):
                progress.bad += 1
                self.bad.append(line)
                message = f"{self._name}:{line}: {reason}."
                if self._job.strict:
                    raise PamxError(message, "Mend the line; or leave out --strict to skip it.")
                progress.say(message)
            case Notice(line, text):
                progress.say(f"{self._name}:{line}: {text}.")
            case Tick():
                progress.show(event)


def _open(file: str) -> BinaryIO:
    if file != "-":
        with as_given(file):
            return Path(file).open("rb")
    # Not sys.stdin: a thread that still reads from it would keep Python from shutting down.
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _read(job: Job, stream: BinaryIO, name: str, defaults: Defaults) -> Iterator[RowEvent]:
    with stream:  # by the thread that reads it; if that waits for a pipe, the process's end does
        yield from read_rows(stream, name, job.format, defaults)


def _output(job: Job) -> Stdout | ResultFile:
    if job.output in (None, "-"):
        return Stdout()
    path = Path(str(job.output))
    with as_given(path):
        if job.file != "-" and path.exists() and path.samefile(job.file):
            raise RequestError(
                f"{path} is the batch file itself.", "Give --output another file for the results."
            )
        return ResultFile(path, resume=job.resume)


def _progress(job: Job, before: int, answers: int) -> Progress:
    total = None
    if not job.quiet and Path(job.file).is_file():
        with Path(job.file).open("rb") as stream:
            total = max(count_lines(stream, job.file) - before, 0)
    return Progress(total, quiet=job.quiet, answers=answers)
