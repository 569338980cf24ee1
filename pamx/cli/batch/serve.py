"""The loop on the engine's thread: rows in, steps, finished rows out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pamx.cli.batch.feed import Feed
from pamx.cli.batch.logprobs import Place, place
from pamx.cli.batch.order import Order
from pamx.cli.batch.row import BadRow, Notice, Row, RowEvent
from pamx.errors import PamxError, RequestError

if TYPE_CHECKING:
    from pamx.engine import Completion, Engine, Sampling
    from pamx.engine.batch import BatchEngine, BatchStats, Output

# Rows that the engine is given, for each one that can run: enough to choose from by priority and
# shared prefix, few enough that no long file is tokenized before it is needed.
_QUEUED = 4
# Finished rows that may wait for an earlier one before no more rows are taken.
_HELD = 1024
_IDLE = 0.2  # seconds between looks at a slow pipe


@dataclass(frozen=True)
class Finished:
    """A row that is over.

    Attributes:
        row: The row.
        samples: One completion for each answer; None where it failed.
        error: Why the row, or the first answer that failed, could not be served.
        logprobs: For each answer, its tokens' log-probabilities if they were asked for.
    """

    row: Row
    samples: list[Completion | None]
    error: PamxError | None
    logprobs: list[list[Place]] = field(default_factory=list)


@dataclass(frozen=True)
class Tick:
    """A step is over.

    Attributes:
        tokens: Generated since the start.
        answers: That are over.
        wanted: Answers of all rows that have been taken up, among them those that are over.
        rows: That have been taken up.
    """

    tokens: int
    answers: int
    wanted: int
    rows: int


Event = Finished | BadRow | Notice | Tick


@dataclass(frozen=True)
class Limits:
    """What the batch engine may use at a time: sequences, tokens a step, a prefix cache."""

    max_seqs: int
    token_budget: int | None
    prefix_cache: bool


def serve(
    engine: Engine,
    first: Row,
    feed: Feed[RowEvent],
    limits: Limits,
    *,
    in_order: bool,
    stop: threading.Event,
    keep_stats: Callable[[BatchStats], None],
) -> Iterator[Event]:
    """Serves `first` and the rows of the feed until they end or `stop` is set.

    Yields:
        What happens, as it happens; finished rows in the order of the file if `in_order`.
    """
    with engine.batch(
        max_seqs=limits.max_seqs,
        token_budget=limits.token_budget,
        prefix_cache=limits.prefix_cache,
    ) as batch:
        loop = _Loop(engine, batch, Order(keep=in_order))
        try:
            yield from loop.accept(first)
            patience: float | None = _IDLE  # at first, until the queue is full
            while not stop.is_set():
                while not stop.is_set() and loop.has_room(_QUEUED * limits.max_seqs):
                    item = feed.take(patience)
                    if item is None:
                        break
                    yield from loop.accept(item)
                patience = None if loop.busy else _IDLE
                if loop.busy:
                    yield from loop.step()
                elif feed.exhausted:
                    break
                yield loop.tick()
        finally:
            keep_stats(batch.stats())


@dataclass
class _Running:
    row: Row
    ticket: int
    samples: list[Completion | None]
    logprobs: list[list[Place]]
    left: int
    error: PamxError | None = None


class _Loop:
    """The rows that the engine has, and the order in which they leave."""

    def __init__(self, engine: Engine, batch: BatchEngine, order: Order[Finished]) -> None:
        self._engine = engine
        self._batch = batch
        self._order = order
        self._running: dict[str, _Running] = {}
        self._tokens = self._answers = self._wanted = self._rows = 0

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def has_room(self, most: int) -> bool:
        return len(self._running) < most and self._order.held < _HELD

    def tick(self) -> Tick:
        return Tick(self._tokens, self._answers, self._wanted, self._rows)

    def accept(self, item: RowEvent) -> Iterator[Event]:
        """Hands a row to the engine; passes on everything else."""
        if not isinstance(item, Row):
            yield item
            return
        ticket = self._order.ticket()
        try:
            sampling = _sampling(item)
        except RequestError as error:
            yield BadRow(item.line, error.message.rstrip("."))
            yield from self._order.put(ticket, None)
            return
        count = item.options.n
        self._rows += 1
        self._wanted += count
        try:
            self._submit(item, sampling)
        except PamxError as error:
            self._answers += count
            yield from self._order.put(ticket, Finished(item, [], error))
            return
        self._running[item.custom_id] = _Running(
            item, ticket, [None] * count, [[] for _ in range(count)], count
        )

    def step(self) -> Iterator[Event]:
        for output in self._batch.step():
            if output.token is not None:
                self._tokens += 1
                if output.logprobs is not None:
                    at = place(self._engine.tokenizer, output.token, output.logprobs)
                    self._running[output.request_id].logprobs[output.index].append(at)
            if output.completion is not None or output.error is not None:
                yield from self._end(output)

    def _submit(self, row: Row, sampling: Sampling) -> None:
        from pamx.engine.request import Request

        options = row.options
        self._check_tokens("stop_token_ids", options.stop_token_ids)
        self._check_tokens("logit_bias", options.logit_bias)
        self._batch.submit(
            Request(
                id=row.custom_id,
                prompt=self._engine.tokens(row.prompt, raw=row.raw),
                max_tokens=options.max_tokens,
                sampling=sampling,
                stop=options.stop,
                stop_tokens=frozenset(options.stop_token_ids),
                min_tokens=options.min_tokens,
                n=options.n,
                priority=row.priority,
            )
        )

    def _check_tokens(self, name: str, tokens: Iterable[int]) -> None:
        """Raises RequestError if the field names a token that the model does not have."""
        try:
            if given := list(tokens):
                self._engine.tokens(given)
        except RequestError as error:
            raise RequestError(f"{name}: {error.message}", error.hint) from error

    def _end(self, output: Output) -> Iterator[Event]:
        """One answer of a row is over."""
        self._answers += 1
        running = self._running[output.request_id]
        running.samples[output.index] = output.completion
        running.error = running.error or output.error
        running.left -= 1
        if not running.left:
            del self._running[output.request_id]
            done = Finished(running.row, running.samples, running.error, running.logprobs)
            yield from self._order.put(running.ticket, done)


def _sampling(row: Row) -> Sampling:
    """Raises RequestError if a value is out of range."""
    from pamx.engine import Sampling

    options = row.options
    return Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=options.logit_bias,
        logprobs=options.logprobs,
    )
