"""Which sequences run in the next step, with how many tokens, on which pages. No arrays here.

Each round fills a step of at most `token_budget` tokens: first one token for every sequence that
is generating, then pieces of prompts, then newcomers, the best rank first. Rank is priority, then
arrival; waiting raises it, so that nothing starves. When pages run out, cached blocks that nobody
uses go first; then the worst-ranked running sequence is preempted: its pages are swapped out or
forgotten, whichever the cost model finds cheaper, and it waits for its turn.

Progress is certain: a sequence is accepted only if the pool could hold it alone, and the
best-ranked one can have every page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pamx.engine.sequence import Sequence, Status
from pamx.errors import OutOfBlocksError, RequestError
from pamx.kv.block_manager import BlockManager
from pamx.kv.block_table import BlockCopy
from pamx.kv.prefix_index import Key, PrefixIndex


@dataclass(frozen=True, eq=False)
class Chunk:
    """A sequence's part of a step: tokens [start, start + count) are computed.

    `samples` tells whether the last row chooses the sequence's next token; `copies` are to be
    made in the pools before the step.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    copies: list[BlockCopy]


@dataclass(eq=False)
class Plan:
    """One step. The executor saves `swap_out`, makes the chunks' copies in their order, restores
    `swap_in`, and only then runs the model: what one of these reads, a later one may overwrite."""

    chunks: list[Chunk] = field(default_factory=list)
    swap_out: list[tuple[Sequence, list[int]]] = field(default_factory=list)
    swap_in: list[tuple[Sequence, list[int]]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


@dataclass
class Counters:
    """What has happened since the start."""

    rounds: int = 0
    preemptions: int = 0
    swaps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    peak_blocks: int = 0


# Told a sequence that must give up its pages, decides whether they are worth keeping in a swap
# tier, and then reserves the room there.
PreferSwap = Callable[[Sequence], bool]


class Scheduler:
    """Decides step by step; owns the queues.

    Args:
        manager: The pool's blocks.
        index: The prefix cache, or None to do without.
        token_budget: Most tokens in a step.
        max_seqs: Most sequences with pages at a time.
        prefer_swap: Cost model of preemption; None: always compute again.
        ageing_rounds: Rounds of waiting that weigh as much as one step of priority.
    """

    def __init__(
        self,
        manager: BlockManager,
        index: PrefixIndex | None = None,
        *,
        token_budget: int = 512,
        max_seqs: int = 16,
        prefer_swap: PreferSwap | None = None,
        ageing_rounds: int = 200,
    ) -> None:
        if token_budget < 1 or max_seqs < 1:
            raise RequestError("The token budget and the number of sequences must be at least 1.")
        self.manager = manager
        self.index = index
        self.token_budget = token_budget
        self.max_seqs = max_seqs
        self.counters = Counters()
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []  # WAITING and SWAPPED
        self._prefer_swap = prefer_swap
        self._ageing_rounds = ageing_rounds
        self._highest_priority = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def first_in_line(self) -> Sequence:
        """The best-ranked of those that wait."""
        return min(self.waiting, key=self._rank)

    def is_stuck(self, plan: Plan) -> bool:
        """Whether this plan, and any later one, is empty because others hold the pages.

        Among its own sequences the scheduler always finds pages for the best-ranked one.
        """
        idle = not (plan.chunks or plan.swap_in or plan.preempted or self.running)
        return idle and any(not sequence.complete for sequence in self.waiting)

    def check_fits(self, prompt_len: int, max_len: int) -> None:
        """Raises RequestError if the pool could not hold a sequence even alone."""
        needed, size = self.manager.blocks_for(max_len), self.manager.block_size
        if needed > self.manager.num_blocks:
            raise RequestError(
                f"The request may grow to {max_len:,} tokens ({prompt_len:,} of prompt), which "
                f"takes {needed:,} blocks of {size} tokens; the pool has "
                f"{self.manager.num_blocks:,} blocks, {self.manager.num_blocks * size:,} tokens.",
                "Shorten the prompt, ask for fewer tokens, or give the pool a larger context.",
            )

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence in line.

        Raises:
            RequestError: the pool could not hold it even alone.
        """
        self.check_fits(sequence.prompt_len, sequence.max_len)
        sequence.status = Status.WAITING
        self._highest_priority = max(self._highest_priority, sequence.priority)
        self.waiting.append(sequence)

    def fork(self, sequence: Sequence, child: Sequence) -> None:
        """Puts `child`, which has the tokens of a running sequence, in line on shared pages.

        Without a free place it waits without pages, and finds most of them in the prefix cache
        when its turn comes.
        """
        if len(self.running) < self.max_seqs:
            child.table = sequence.table.fork()
            child.keys, child.registered = list(sequence.keys), sequence.registered
            child.last_registered = sequence.last_registered
            child.status = Status.RUNNING
            self.running.append(child)
        else:
            self.add(child)

    def settle(self, sequence: Sequence, token: int) -> None:
        """Tells the token that a step chose for a sequence."""
        sequence.in_flight -= 1
        sequence.tokens.append(token)

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out for good and frees its pages; cached blocks stay findable."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._register(sequence)
        elif sequence.status is not Status.FINISHED:
            self.waiting.remove(sequence)
        self._close(sequence)
        sequence.status = Status.FINISHED

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence out whatever it is in the middle of; none of it stays findable."""
        for queue in (self.running, self.waiting):
            if sequence in queue:
                queue.remove(sequence)
        sequence.table.close()
        sequence.status = Status.FINISHED

    # ---- one round ------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """Plans the next step; an empty plan means that nothing can run before a step settles."""
        self.counters.rounds += 1
        plan = Plan()
        for sequence in self.waiting:
            sequence.waited += 1
        for sequence in self.running:
            self._register(sequence)
        best_first = sorted(self.running, key=self._rank)
        generating = [s for s in best_first if s.to_compute == 1]
        reading = [s for s in best_first if s.to_compute > 1]
        for sequence in (*generating, *reading):
            self._continue(sequence, plan)
        for sequence in sorted(self.waiting, key=self._rank):
            if not self._admit(sequence, plan):
                break
        self.counters.peak_blocks = max(self.counters.peak_blocks, self.manager.num_used)
        return plan

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        """Smaller is better.

        Waiting lifts a sequence to one class above the highest priority, and no further: there,
        arrival decides for good, so that two cannot overtake each other for ever.
        """
        most = self._highest_priority - sequence.priority + 1
        lift = min(sequence.waited // self._ageing_rounds, most)
        return -(sequence.priority + lift), sequence.arrival

    def _continue(self, sequence: Sequence, plan: Plan) -> None:
        """Gives a running sequence its part of the step, preempting worse ones if it must."""
        while sequence.status is Status.RUNNING and not sequence.complete:
            count = min(sequence.to_compute, self.token_budget - plan.num_tokens)
            if count < 1 or self._compute(sequence, count, plan):
                return
            self._preempt(max(self.running, key=self._rank), plan)

    def _admit(self, sequence: Sequence, plan: Plan) -> bool:
        """Starts a waiting sequence, if it can; False: neither may any worse-ranked one."""
        if sequence in plan.preempted or sequence.complete:
            return True
        if plan.num_tokens >= self.token_budget or len(self.running) >= self.max_seqs:
            return self._displace(sequence, plan)
        if sequence.status is Status.WAITING and self._waits_for_a_prefix(sequence):
            return True
        if not self._take_pages(sequence, plan):
            return self._displace(sequence, plan)
        if not sequence.started:
            sequence.started = True
            self.counters.prompt_tokens += sequence.prompt_len
            sequence.cached_tokens = sequence.table.num_tokens
            self.counters.cached_tokens += sequence.cached_tokens
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        count = min(sequence.to_compute, self.token_budget - plan.num_tokens)
        self._compute(sequence, count, plan)
        return True

    def _displace(self, sequence: Sequence, plan: Plan) -> bool:
        """Preempts the worst running sequence if it is of a lower class than a waiting one."""
        worst = max(self.running, key=self._rank, default=None)
        if worst is None or self._rank(sequence)[0] >= self._rank(worst)[0]:
            return False
        self._preempt(worst, plan)
        return self._admit(sequence, plan)

    def _compute(self, sequence: Sequence, count: int, plan: Plan) -> bool:
        """Adds a chunk of `count` tokens to the plan; False if pages lack for it."""
        start = sequence.table.num_tokens
        blocks = self.manager.blocks_for(start + count) - len(sequence.table.blocks)
        self._evict_down_to(blocks + sequence.table.shares_tail)
        try:
            copies = sequence.table.grow(count)
        except OutOfBlocksError:
            return False
        samples = start + count == sequence.length
        sequence.in_flight += samples
        plan.chunks.append(Chunk(sequence, start, count, samples, copies))
        return True

    # ---- pages ----------------------------------------------------------------------------------

    def _take_pages(self, sequence: Sequence, plan: Plan) -> bool:
        """Gives a newcomer its first pages: restored, found in the prefix cache, or none yet.

        False if there is no room for it: all that it has computed and its next tokens, and one
        block more for each sequence that runs already and may still need one.
        """
        found: list[int] = []
        if sequence.status is Status.WAITING and self.index is not None:
            # The last token is always computed: its row chooses the next one.
            last = sequence.length - 1
            found = self.index.find(self._keys(sequence, last), sequence.tokens)
            sequence.table.adopt(found)
        held = max(sequence.swapped_tokens, sequence.table.num_tokens)
        count = min(sequence.length - held, self.token_budget - plan.num_tokens)
        wanted = self.manager.blocks_for(held + count) - len(found)
        wanted += sum(self._may_take_a_block(other) for other in self.running)
        self._evict_down_to(wanted)
        if self.manager.num_free < wanted:
            sequence.table.close()
            return False
        if sequence.status is Status.SWAPPED:
            sequence.table.grow(sequence.swapped_tokens)
            plan.swap_in.append((sequence, list(sequence.table.blocks)))
            sequence.swapped_tokens = 0
        sequence.registered = len(found)
        return True

    def _may_take_a_block(self, sequence: Sequence) -> bool:
        table = sequence.table
        may_grow = self.manager.blocks_for(sequence.max_len) > len(table.blocks)
        return may_grow or (table.shares_tail and table.num_tokens < sequence.max_len)

    def _evict_down_to(self, wanted: int) -> None:
        """Evicts cached blocks until `wanted` blocks are free, or none can go."""
        if self.index is not None and self.manager.num_free < wanted:
            self.index.evict(wanted - self.manager.num_free)

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        self.counters.preemptions += 1
        self._withdraw(sequence, plan)
        self.running.remove(sequence)
        self.waiting.append(sequence)
        plan.preempted.append(sequence)
        self._register(sequence)
        tokens, blocks = sequence.table.num_tokens, list(sequence.table.blocks)
        if tokens and self._prefer_swap is not None and self._prefer_swap(sequence):
            self.counters.swaps += 1
            plan.swap_out.append((sequence, blocks))
            sequence.swapped_tokens = tokens
            sequence.status = Status.SWAPPED
        else:
            sequence.status = Status.WAITING
        self._close(sequence)

    def _withdraw(self, sequence: Sequence, plan: Plan) -> None:
        """Takes a running sequence's chunk out of the plan, as if it had never been in it."""
        for chunk in plan.chunks:
            if chunk.sequence is sequence:
                plan.chunks.remove(chunk)
                sequence.in_flight -= chunk.samples
                # A fresh copy of a shared block would stay empty: that block is computed again.
                size = self.manager.block_size
                sequence.table.trim(chunk.start // size * size if chunk.copies else chunk.start)
                break

    def _close(self, sequence: Sequence) -> None:
        if self.index is not None:
            self.index.touch(sequence.keys[: sequence.registered])
        sequence.table.close()
        sequence.registered, sequence.last_registered = 0, None

    # ---- prefixes -------------------------------------------------------------------------------

    def _keys(self, sequence: Sequence, tokens: int) -> list[Key]:
        """Keys of the full blocks of a sequence's first `tokens` tokens, which must be known."""
        assert self.index is not None
        full = min(tokens, len(sequence.tokens)) // self.manager.block_size
        if len(sequence.keys) < full:
            self.index.extend(sequence.keys, sequence.tokens)
        return sequence.keys[:full]

    def _register(self, sequence: Sequence) -> None:
        """Makes a running sequence's newly computed full blocks findable."""
        if self.index is None:
            return
        known = min(sequence.table.num_tokens, len(sequence.tokens))
        full = known // self.manager.block_size
        if full > sequence.registered:
            self.index.extend(sequence.keys, sequence.tokens)
            last, blocks = sequence.last_registered, sequence.table.blocks
            sequence.last_registered = self.index.insert(
                sequence.keys, sequence.tokens, blocks, full, last
            )
            sequence.registered = full

    def _waits_for_a_prefix(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to compute the next block that this one needs.

        Then it is cheaper to wait: requests that arrive together compute a shared beginning once.
        """
        if self.index is None:
            return False
        keys = self._keys(sequence, sequence.length - 1)
        missing = next((i for i, key in enumerate(keys) if key not in self.index), None)
        if missing is None:
            return False
        return any(
            len(keys_of_other := self._keys(other, other.prompt_len)) > missing
            and keys_of_other[missing] == keys[missing]
            and other.registered <= missing
            for other in self.running
        )
