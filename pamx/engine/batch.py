"""Many requests at once: continuous batching over one pool of pages.

A step is planned and queued while the one before it still runs. Its new tokens are not known to
the host then; they go from step to step on the device. A sequence that turns out to have ended
has a row too many in the step that is running, and nothing of it is ever handed out.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import mlx.core as mx

from pamx.closing import Closing
from pamx.engine.checks import whole
from pamx.engine.completion import Completion, FinishReason
from pamx.engine.draw import Change, Drawn, Place, adjust, answer_seed, draw
from pamx.engine.gate import Gate
from pamx.engine.logprobs import LogprobRows
from pamx.engine.logprobs import Logprobs as Logprobs
from pamx.engine.model_runner import ModelRunner
from pamx.engine.request import Request
from pamx.engine.scheduler import Plan, Scheduler
from pamx.engine.sequence import Sequence, Status
from pamx.engine.steps import CLEAR_EVERY, not_numbers
from pamx.engine.swap_policy import SwapPolicy
from pamx.engine.text import TextStream
from pamx.errors import OutOfBlocksError, PamxError, RequestError
from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockTable
from pamx.kv.prefix_index import PrefixIndex
from pamx.kv.swap import SwapSpace
from pamx.native.step_limits import MOST_SEQUENCES
from pamx.substitute.needs import prefill_chunk
from pamx.substitute.paged_model import PagedModel

_GAPS_KEPT = 100_000


@dataclass(frozen=True)
class Output:
    """News of one answer.

    Attributes:
        request_id: The request.
        index: Which of its answers, from 0.
        text: New text; empty while a character or a possible stop string is incomplete.
        token: The token that came, or None on the last output.
        logprobs: Of this token, if they were asked for.
        completion: The whole answer, on its last output.
        error: Why the answer broke off, on its last output.
    """

    request_id: str
    index: int
    text: str
    token: int | None = None
    logprobs: Logprobs | None = None
    completion: Completion | None = None
    error: PamxError | None = None


@dataclass(frozen=True)
class BatchStats:
    """What a batch engine has done since it was made.

    Attributes:
        prompt_tokens: Tokens of all prompts that were begun.
        cached_tokens: How many of them were found in the prefix cache.
        completion_tokens: Tokens handed out.
        preemptions: Times a running sequence gave up its pages.
        swaps: How many of these moved the pages to a swap tier.
        peak_blocks: Most blocks in use at a time, cached ones included.
        num_blocks: Blocks in the pool.
        steps: Steps run.
        gaps: Seconds between tokens of one answer, all answers together: the latest 100,000.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    preemptions: int
    swaps: int
    peak_blocks: int
    num_blocks: int
    steps: int
    gaps: list[float]


@dataclass(eq=False)
class _Answer:
    """One of a request's answers while it is being made."""

    request: Request
    index: int
    sequence: Sequence
    text: TextStream
    seed: int
    submitted: float
    cached_tokens: int = 0
    first: float = 0.0
    last: float = 0.0

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens[len(self.request.prompt) :]


@dataclass(eq=False)
class _Running:
    """A queued step: which answer each sampled row belongs to."""

    answers: list[_Answer]
    drawn: Drawn
    logprobs: list[tuple[list[int], LogprobRows]]  # of which rows, if any
    broken: dict[_Answer, mx.array]  # for first tokens: whether the logits are not numbers
    begin: float
    num_tokens: int

    def arrays(self) -> list[mx.array]:
        """What to evaluate of it."""
        ranked = [array for _, rows in self.logprobs for array in rows.arrays()]
        return [*self.drawn.arrays(), *ranked, *self.broken.values()]

    def settle_tokens(self) -> None:
        """Makes sure of the tokens, before anything is computed from them."""
        if self.drawn.settle():
            self.choose()
        for _, ranked in self.logprobs:
            ranked.settle()

    def choose(self) -> None:
        for rows, ranked in self.logprobs:
            ranked.choose(self.drawn.tokens[mx.array(rows)])


@dataclass(frozen=True)
class _Arrival:
    """A request that the next step takes in."""

    request: Request
    limit: int  # tokens of an answer
    submitted: float


@dataclass
class _Totals:
    completion_tokens: int = 0
    steps: int = 0
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS_KEPT))


class BatchEngine(Closing):
    """Answers many requests over one model's pages; make one with `Engine.batch`.

    Args:
        paged: The model on its pages.
        tokenizer: mlx-lm's tokenizer wrapper.
        context: Tokens that a prompt and its answer may have together.
        gate: Lets one thread at a time in; None: one of its own.
        vocabulary: Token ids that the model knows, to check prompts against; None: unchecked.
        fingerprint: Identifies the model, for the prefix cache.
        max_seqs: Most sequences with pages at a time, up to 4,096.
        token_budget: Most tokens in a step; None: what suits the device, and no less than
            `max_seqs`.
        prefix_cache: Whether equal beginnings of prompts share their pages.
        swap_ram: Bytes of memory for the pages of preempted sequences.
        swap_disk: Bytes of files for them.
        swap_folder: Where these files go; None: the system's place for temporary files.
        prefer_swap: Decides what a preemption does; None: the cost model.
    """

    def __init__(
        self,
        paged: PagedModel,
        tokenizer: Any,
        context: int,
        *,
        gate: Gate | None = None,
        vocabulary: int | None = None,
        fingerprint: str = "",
        max_seqs: int = 16,
        token_budget: int | None = None,
        prefix_cache: bool = True,
        swap_ram: int = 0,
        swap_disk: int = 0,
        swap_folder: Path | None = None,
        prefer_swap: Callable[[Sequence], bool] | None = None,
    ) -> None:
        whole("max_seqs", max_seqs, f"from 1 to {MOST_SEQUENCES:,}", 1, MOST_SEQUENCES)
        if token_budget is not None:
            whole("token_budget", token_budget, "at least 1", 1)
        for name, size in (("swap_ram", swap_ram), ("swap_disk", swap_disk)):
            whole(name, size, "0 or more", 0)
        self._paged = paged
        self._tokenizer = tokenizer
        self._context = context
        self._vocabulary = vocabulary
        self._gate = gate or Gate()
        self._closed = False
        self._swap = SwapSpace(paged.pool, swap_ram, swap_disk, swap_folder)
        self._runner = ModelRunner(paged, self._swap)
        self._policy = SwapPolicy(self._swap)
        self._index = PrefixIndex(paged.manager, fingerprint) if prefix_cache else None
        if self._index is not None:
            paged.manager.add_reclaimer(self._index.evict)
        self._scheduler = Scheduler(
            paged.manager,
            self._index,
            token_budget=token_budget or max(prefill_chunk(paged.compute.mode), max_seqs),
            max_seqs=max_seqs,
            prefer_swap=prefer_swap or self._policy.prefer_swap,
        )
        self._answers: dict[Sequence, _Answer] = {}
        # What any thread may submit or cancel while another is in `step`, which takes it in.
        self._door = threading.RLock()  # a signal's handler may come in between
        self._requests: dict[str, Request] = {}
        self._arrivals: deque[_Arrival] = deque()
        self._cancelled: deque[str] = deque()
        self._numbers = itertools.count()
        self._running: _Running | None = None
        self._totals = _Totals()
        self._news: list[Output] = []  # for the next step to return
        self._broken_off = False
        # Also for a batch that nobody closes: its pages would be lost to the others.
        self._held = paged.manager, self._scheduler, self._index, self._swap, self._answers
        self._finalizer = weakref.finalize(self, _give_back, *self._held)

    # ---- requests -------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Puts a request in line. Any thread may call this, also while another is in `step`.

        Raises:
            RequestError: it could never be answered here, or its id is taken.
        """
        if not isinstance(request, Request):
            raise RequestError(f"A request is wanted, not {request!r}.", "Make a pamx.Request.")
        request.check_ids(self._vocabulary)
        limit = self._context - len(request.prompt)
        if limit < 1:
            raise RequestError(
                f"The prompt is {len(request.prompt):,} tokens long, and the context is "
                f"{self._context:,} tokens, the answer included.",
                "Shorten it, or ask for a larger context.",
            )
        if request.max_tokens is not None:
            limit = min(limit, request.max_tokens)
        self._scheduler.check_fits(len(request.prompt), len(request.prompt) + limit)
        with self._door:
            self._check_open()
            if self._broken_off:
                raise RequestError("A step of this batch was broken off.", "Start another one.")
            if request.id in self._requests:
                raise RequestError(
                    f"There is an unfinished request with the id {request.id!r} already."
                )
            self._arrivals.append(_Arrival(request, limit, time.perf_counter()))
            self._requests[request.id] = request

    def cancel(self, request_id: str) -> None:
        """Ends a request's answers; what they have so far comes with the next step's outputs.

        Any thread may call this, also while another is in `step`.
        """
        with self._door:
            if request_id in self._requests:
                self._cancelled.append(request_id)

    @property
    def has_work(self) -> bool:
        """Whether a step has something to do or to tell."""
        return (
            not self._closed
            and not self._gate.closed
            and bool(self._arrivals or self._answers or self._news)
        )

    def _check_open(self) -> None:
        self._gate.check_open()
        if self._closed:
            raise RequestError("This batch is closed.", "Start another one.")

    def _take_in(self) -> None:
        """Takes in what was submitted and cancelled since the step before."""
        while self._arrivals:
            arrival = self._arrivals[0]
            request = arrival.request
            number = next(self._numbers)
            answer = self._new_answer(request, 0, list(request.prompt), arrival.limit, number)
            answer.submitted = arrival.submitted
            self._answers[answer.sequence] = answer
            self._scheduler.add(answer.sequence)
            self._arrivals.popleft()
        while self._cancelled:
            request_id = self._cancelled.popleft()
            for answer in [a for a in self._answers.values() if a.request.id == request_id]:
                self._news += self._end_early(answer)

    def _new_answer(
        self, request: Request, index: int, tokens: list[int], limit: int, number: int
    ) -> _Answer:
        sequence = Sequence(
            id=number,
            tokens=tokens,
            prompt_len=len(request.prompt),
            max_len=len(request.prompt) + limit,
            table=BlockTable(self._paged.manager),
            priority=request.priority,
            arrival=number,
        )
        return _Answer(
            request=request,
            index=index,
            sequence=sequence,
            text=TextStream(self._tokenizer.detokenizer, request.stop),
            seed=answer_seed(request.sampling, index),
            submitted=time.perf_counter(),
        )

    # ---- steps ----------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Queues the next step and returns what the one before it brought.

        Whatever is raised here, Ctrl-C included, breaks the batch off: the next step gives each
        unfinished answer an error, and nothing more can be submitted.
        """
        with self._gate:
            self._check_open()
            if self._broken_off:
                self._break_off()  # which may have been broken off itself
            else:
                try:
                    self._take_in()
                    self._advance()
                except BaseException:
                    self._break_off()
                    raise
            outputs, self._news = self._news, []
            return outputs

    def _advance(self) -> None:
        if self._running is not None and not self._can_look_ahead():
            self._settle()
        plan = self._scheduler.schedule()
        if self._running is None and self._scheduler.is_stuck(plan):
            self._give_up(self._scheduler.first_in_line)
        queued = self._launch(plan) if plan.chunks or plan.swap_out or plan.swap_in else None
        self._settle()
        self._running = queued

    def _break_off(self) -> None:
        """Ends everything: what was planned for a step that broke off may not be computed."""
        self._broken_off = True
        self._running = None
        error = PamxError(
            "A step of the batch was broken off, and this answer with it.",
            "Submit its request to another batch.",
        )
        ended = {(o.request_id, o.index) for o in self._news if o.completion or o.error}
        open_ends = []
        with self._door:
            for answer in self._answers.values():
                self._scheduler.drop(answer.sequence)
                self._swap.drop(answer.sequence.id)
                open_ends += [
                    (answer.request.id, i) for i in (answer.index, *self._unforked(answer))
                ]
            for arrival in self._arrivals:
                open_ends += [(arrival.request.id, i) for i in range(arrival.request.n)]
            for end in open_ends:
                if end not in ended:
                    ended.add(end)
                    self._news.append(Output(*end, "", error=error))
            self._answers.clear()
            self._arrivals.clear()
            self._requests.clear()
        if self._index is not None:
            self._index.clear()

    def _give_up(self, sequence: Sequence) -> None:
        """Ends an answer that cannot have pages because others than this engine hold them."""
        manager = self._paged.manager
        needed = manager.blocks_for(sequence.length)
        error = OutOfBlocksError(
            f"The request needs {needed} blocks of {manager.block_size} tokens now, and "
            f"{manager.num_free} of {manager.num_blocks} are free: conversations or other batches "
            "on this model hold the rest.",
            "Close them, or load the model with a larger context.",
        )
        ends = self._end_early(self._answers[sequence])
        self._news += [replace(end, completion=None, error=error) for end in ends]

    def _can_look_ahead(self) -> bool:
        """Whether the next step can be queued without knowing this one's tokens."""
        return self._paged.backend.in_place and not any(
            a.request.sampling.needs_history for a in self._answers.values()
        )

    def _launch(self, plan: Plan) -> _Running | None:
        begin = time.perf_counter()
        self._runner.move_pages(plan)
        sampling = [chunk for chunk in plan.chunks if chunk.samples]
        if not plan.chunks:
            return None
        self._totals.steps += 1
        if self._totals.steps % CLEAR_EVERY == 0:
            mx.clear_cache()
        if self._running is not None:
            self._running.settle_tokens()
        logits = self._runner.logits(plan.chunks, self._queued_tokens())
        rows: list[int] = []
        answers: list[_Answer] = []
        for row, chunk in enumerate(sampling):
            for answer in (self._answers[chunk.sequence], *self._fork(chunk.sequence)):
                rows.append(row)
                answers.append(answer)
        queued = self._draw(answers, rows, logits, begin, plan.num_tokens)
        # The pools too: rows inside of prompts are not needed for any of the tokens.
        mx.async_eval(queued.arrays(), self._paged.arrays())  # type: ignore[no-untyped-call]
        return queued

    def _queued_tokens(self) -> tuple[dict[Sequence, int], mx.array] | None:
        """The tokens that the running step is choosing, and whose is which."""
        if self._running is None:
            return None
        rows = {answer.sequence: row for row, answer in enumerate(self._running.answers)}
        return rows, self._running.drawn.tokens

    def _fork(self, sequence: Sequence) -> list[_Answer]:
        """The other answers to a prompt that has just been read to its end, on shared pages."""
        answer = self._answers[sequence]
        request = answer.request
        if answer.index > 0 or request.n == 1 or sequence.length > sequence.prompt_len + 1:
            return []
        others = []
        for index in range(1, request.n):
            limit = sequence.max_len - sequence.prompt_len
            other = self._new_answer(
                request, index, list(request.prompt), limit, next(self._numbers)
            )
            other.sequence.arrival = sequence.arrival
            other.submitted = answer.submitted
            other.cached_tokens = len(request.prompt)
            other.sequence.started = True
            self._answers[other.sequence] = other
            self._scheduler.fork(sequence, other.sequence)
            other.sequence.in_flight += 1
            others.append(other)
        return others

    def _draw(
        self,
        answers: list[_Answer],
        rows: list[int],
        logits: mx.array | None,
        begin: float,
        num_tokens: int,
    ) -> _Running:
        """Chooses each answer's next token from its row of the step's logits; lazy."""
        if logits is None:
            return _Running([], Drawn(mx.zeros((0,), mx.int32)), [], {}, begin, num_tokens)
        places = []
        changes: dict[int, Change] = {}
        for row, answer in enumerate(answers):
            request, sampling = answer.request, answer.request.sampling
            index = answer.sequence.length - 1 - answer.sequence.prompt_len
            places.append(Place(sampling, answer.seed, index))
            banned = self._ending(request) if index < request.min_tokens else frozenset()
            if banned or sampling.logit_bias or sampling.needs_history:
                changes[row] = partial(_adjusted, answer=answer, banned=banned)
        first = [row for row, answer in enumerate(answers) if not answer.first]
        broken = {}
        if first:
            # Of numbers one of which is NaN, the largest is NaN; a mask of all would be large.
            nan = mx.isnan(mx.max(logits, axis=-1))
            broken = {answers[row]: nan[rows[row]] for row in first}
        ranked = []
        wanted = [r for r, a in enumerate(answers) if a.request.sampling.logprobs is not None]
        if wanted:
            counts = [answers[row].request.sampling.logprobs or 0 for row in wanted]
            ranked.append((wanted, LogprobRows(logits, counts, [rows[row] for row in wanted])))
        drawn = draw(logits, places, rows, changes)
        running = _Running(answers, drawn, ranked, broken, begin, num_tokens)
        if not drawn.is_late:
            running.choose()
        return running

    def _ending(self, request: Request) -> frozenset[int]:
        return request.stop_tokens | frozenset(self._tokenizer.eos_token_ids)

    # ---- results --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Takes in the running step's tokens."""
        running, self._running = self._running, None
        if running is None:
            return
        running.settle_tokens()
        tokens: Any = running.drawn.tokens.tolist()
        logprobs: dict[int, Logprobs] = {}
        for rows, ranked in running.logprobs:
            logprobs |= dict(zip(rows, ranked.read(), strict=True))
        now = time.perf_counter()
        self._policy.observe(running.num_tokens, now - running.begin)
        for row, (answer, token) in enumerate(zip(running.answers, tokens, strict=True)):
            if answer.sequence.status is Status.FINISHED:
                continue
            if bool(running.broken.get(answer, False)):
                end = self._end(answer, "cancelled")
                self._news.append(replace(end, completion=None, error=not_numbers()))
            else:
                self._news += self._take(answer, int(token), logprobs.get(row), now)

    def _take(
        self, answer: _Answer, token: int, logprobs: Logprobs | None, now: float
    ) -> list[Output]:
        sequence, request = answer.sequence, answer.request
        if not answer.first:
            answer.first = now
            answer.cached_tokens = answer.cached_tokens or sequence.cached_tokens
        else:
            self._totals.gaps.append(now - answer.last)
        answer.last = now
        self._scheduler.settle(sequence, token)
        self._totals.completion_tokens += 1
        count = len(sequence.tokens) - sequence.prompt_len
        if token in self._ending(request) and count > request.min_tokens:
            return [self._output(answer, "", token, logprobs), self._end(answer, "stop")]
        news = self._output(answer, answer.text.add(token), token, logprobs)
        if answer.text.stopped:
            return [news, self._end(answer, "stop")]
        if len(sequence.tokens) >= sequence.max_len:
            return [news, self._end(answer, "length")]
        return [news]

    def _end_early(self, answer: _Answer) -> list[Output]:
        """Ends an answer, and with it those that would have been forked from it."""
        others = self._unforked(answer)
        end = self._end(answer, "cancelled")
        return [end, *(replace(end, index=index) for index in others)]

    def _unforked(self, answer: _Answer) -> range:
        """Indices of the answers that are still to be forked from this one."""
        forked = answer.index > 0 or answer.sequence.length > answer.sequence.prompt_len
        return range(1, 1 if forked else answer.request.n)

    def _output(self, answer: _Answer, text: str, token: int, logprobs: Logprobs | None) -> Output:
        return Output(answer.request.id, answer.index, text, token, logprobs)

    def _end(self, answer: _Answer, reason: FinishReason) -> Output:
        """Frees an answer's pages and sums it up."""
        sequence = answer.sequence
        rest = answer.text.finish()
        self._scheduler.finish(sequence)
        self._swap.drop(sequence.id)
        del self._answers[sequence]
        if not any(a.request.id == answer.request.id for a in self._answers.values()):
            del self._requests[answer.request.id]
        completion = Completion(
            text=answer.text.text,
            tokens=answer.tokens,
            finish_reason=reason,
            prompt_tokens=len(answer.request.prompt),
            cached_tokens=answer.cached_tokens,
            ttft=(answer.first or time.perf_counter()) - answer.submitted,
            decode_seconds=answer.last - answer.first,
        )
        return Output(answer.request.id, answer.index, rest, completion=completion)

    def stats(self) -> BatchStats:
        counters, totals = self._scheduler.counters, self._totals
        return BatchStats(
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            completion_tokens=totals.completion_tokens,
            preemptions=counters.preemptions,
            swaps=counters.swaps,
            peak_blocks=counters.peak_blocks,
            num_blocks=self._paged.manager.num_blocks,
            steps=totals.steps,
            gaps=list(totals.gaps),
        )

    # ---- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends every request and gives all pages back. Idempotent."""
        with self._gate.alone:
            with self._door:
                self._closed = True
                self._arrivals.clear()
            if self._running is not None:
                mx.eval(self._running.arrays())
                self._running = None
            _give_back(*self._held)
            self._finalizer.detach()
            self._answers.clear()
            self._news.clear()
            self._requests.clear()

    def __enter__(self) -> Self:
        self._check_open()
        return self


def _adjusted(logits: mx.array, answer: _Answer, banned: frozenset[int]) -> mx.array:
    """An answer's row with its bias, penalties and bans, as its tokens are by then."""
    return adjust(logits, answer.request.sampling, answer.request.prompt, answer.tokens, banned)


def _give_back(
    manager: BlockManager,
    scheduler: Scheduler,
    index: PrefixIndex | None,
    swap: SwapSpace,
    answers: dict[Sequence, _Answer],
) -> None:
    """Returns all that a batch holds of the pool. Idempotent."""
    for sequence in list(answers):
        scheduler.drop(sequence)
    if index is not None:
        manager.remove_reclaimer(index.evict)
        index.clear()
    swap.close()
