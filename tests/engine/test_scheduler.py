"""The scheduler and the prefix cache, run against an executor that only keeps books.

The executor stands for the device: it remembers, for each slot of each block, which token of
which history was written there, checks that every token that a step reads is the sequence's own,
and wipes freed blocks. A wrong page, a page written by two sequences, a read of a freed or not
yet restored page shows at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pamx.engine.scheduler import Plan, Scheduler
from pamx.engine.sequence import Sequence, Status
from pamx.errors import RequestError
from pamx.kv import BlockManager, BlockTable
from pamx.kv.prefix_index import PrefixIndex

History = tuple[int, ...]  # a token's key and value depend on all tokens up to it


def next_token(history: History) -> int:
    """The model: a token that depends on everything before it."""
    return hash(history) % 50


@dataclass
class Device:
    """Executes plans one step behind, as the engine does."""

    scheduler: Scheduler
    lookahead: bool
    slots: dict[tuple[int, int], History] = field(default_factory=dict)
    swapped: dict[int, list[dict[int, History]]] = field(default_factory=dict)
    in_flight: list[tuple[Sequence, History]] = field(default_factory=list)
    unknown: dict[Sequence, int] = field(default_factory=dict)
    children: dict[Sequence, list[Sequence]] = field(default_factory=dict)
    largest_step: int = 0
    most_running: int = 0

    def launch(self, plan: Plan) -> list[tuple[Sequence, History]]:
        size = self.scheduler.manager.block_size
        for sequence, blocks in plan.swap_out:
            self.swapped[sequence.id] = [
                {i: h for i in range(size) if (h := self.slots.get((b, i)))} for b in blocks
            ]
        for chunk in plan.chunks:
            for copy in chunk.copies:
                for i in range(size):
                    if (copy.source, i) in self.slots:
                        self.slots[copy.target, i] = self.slots[copy.source, i]
        self._wipe_free_blocks(plan)
        for sequence, blocks in plan.swap_in:
            for block, saved in zip(blocks, self.swapped.pop(sequence.id), strict=True):
                for i, history in saved.items():
                    self.slots[block, i] = history
        writers: dict[int, Sequence] = {}
        sampled = []
        for chunk in plan.chunks:
            sequence = chunk.sequence
            blocks = sequence.table.blocks
            assert sequence.status is Status.RUNNING
            assert chunk.count >= 1
            tokens = [*sequence.tokens]
            if len(tokens) < chunk.start + chunk.count:
                tokens.append(self.unknown[sequence])
            for position in range(chunk.start, chunk.start + chunk.count):
                block = blocks[position // size]
                assert writers.setdefault(block, sequence) is sequence
                self.slots[block, position % size] = tuple(tokens[: position + 1])
            end = chunk.start + chunk.count
            for position in range(end):
                where = blocks[position // size], position % size
                assert self.slots.get(where) == tuple(tokens[: position + 1]), "a foreign page"
            if chunk.samples:
                history = tuple(tokens[:end])
                sampled.append((sequence, history))
                for child in self.children.pop(sequence, []):
                    self.scheduler.fork(sequence, child)
                    child.in_flight += 1
                    sampled.append((child, history))
        for chunk in plan.chunks:
            for block in chunk.sequence.table.blocks:
                assert writers.get(block, chunk.sequence) is chunk.sequence, "read while written"
        self.largest_step = max(self.largest_step, plan.num_tokens)
        self.most_running = max(self.most_running, len(self.scheduler.running))
        return sampled

    def _wipe_free_blocks(self, plan: Plan) -> None:
        # Blocks that this very plan gave to a newcomer count as free before it writes them.
        manager = self.scheduler.manager
        for block, i in list(self.slots):
            if manager.references(block) == 0:
                del self.slots[block, i]
        for _, blocks in plan.swap_in:
            for block in blocks:
                for i in range(manager.block_size):
                    self.slots.pop((block, i), None)

    def step(self) -> None:
        if not self.lookahead:
            self.settle(self.launch(self.scheduler.schedule()))
            return
        plan = self.scheduler.schedule()
        self.unknown = {s: next_token(h) for s, h in self.in_flight}
        new = self.launch(plan)
        self.settle(self.in_flight)
        self.in_flight = new

    def settle(self, sampled: list[tuple[Sequence, History]]) -> None:
        for sequence, history in sampled:
            if sequence.status is Status.FINISHED:
                continue
            assert history == tuple(sequence.tokens)
            self.scheduler.settle(sequence, next_token(history))
            if len(sequence.tokens) >= sequence.max_len or sequence.tokens[-1] == 0:
                self.scheduler.finish(sequence)


def alone(prompt: list[int], max_len: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < max_len and (len(tokens) == len(prompt) or tokens[-1] != 0):
        tokens.append(next_token(tuple(tokens)))
    return tokens


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    requests=st.integers(1, 14),
    num_blocks=st.integers(8, 40),
    size=st.sampled_from([8, 16]),
    budget=st.sampled_from([1, 3, 16, 64, 512]),
    max_seqs=st.integers(1, 8),
    cached=st.booleans(),
    swap=st.sampled_from(["never", "always", "sometimes"]),
    lookahead=st.booleans(),
)
def test_every_request_ends_with_its_own_tokens_and_no_page_is_lost(
    seed: int,
    requests: int,
    num_blocks: int,
    size: int,
    budget: int,
    max_seqs: int,
    cached: bool,
    swap: str,
    lookahead: bool,
) -> None:
    rng = random.Random(seed)
    manager = BlockManager(num_blocks, size)
    index = PrefixIndex(manager) if cached else None
    scheduler = Scheduler(
        manager,
        index,
        token_budget=budget,
        max_seqs=max_seqs,
        ageing_rounds=rng.choice([2, 200]),
        prefer_swap=lambda _: swap == "always" or (swap == "sometimes" and rng.random() < 0.5),
    )
    device = Device(scheduler, lookahead)
    shared = [rng.randrange(50) for _ in range(3 * size)]
    capacity = num_blocks * size
    todo, expected, sequences = [], {}, []
    for number in range(requests):
        prompt = shared[: rng.choice([0, size, 2 * size + 3, 3 * size])]
        prompt = prompt + [rng.randrange(50) for _ in range(rng.randint(1, 2 * size))]
        prompt = prompt[: capacity - 1]
        max_len = min(len(prompt) + rng.randint(1, 3 * size), capacity)
        sequence = Sequence(
            number,
            list(prompt),
            len(prompt),
            max_len,
            BlockTable(manager),
            rng.choice([0, 0, 5]),
            number,
        )
        expected[sequence] = alone(prompt, max_len)
        if rng.random() < 0.3:  # further samples of the same prompt, on its pages
            device.children[sequence] = [
                Sequence(
                    1000 * (number + 1) + i,
                    list(prompt),
                    len(prompt),
                    max_len,
                    BlockTable(manager),
                    sequence.priority,
                    number,
                )
                for i in range(rng.randint(1, 3))
            ]
            for child in device.children[sequence]:
                expected[child] = expected[sequence]
                sequences.append(child)
        todo.append((rng.randint(0, 30), sequence))
        sequences.append(sequence)
    single = [s for _, s in todo if s not in device.children]
    cancelled = set(rng.sample(single, min(len(single), rng.choice([0, 0, 1, 2]))))
    rounds = 0
    while todo or scheduler.has_work or device.in_flight:
        for arrival, sequence in list(todo):
            if arrival <= rounds:
                scheduler.add(sequence)
                todo.remove((arrival, sequence))
        device.step()
        assert manager.num_used <= num_blocks
        for sequence in cancelled:
            if sequence.status is Status.RUNNING and rng.random() < 0.2:
                scheduler.finish(sequence)
        rounds += 1
        assert rounds < 20_000, "a request starves"
    for sequence in sequences:
        assert sequence.status is Status.FINISHED
        want = expected[sequence]
        assert sequence.tokens == (want[: len(sequence.tokens)] if sequence in cancelled else want)
    assert device.largest_step <= budget
    assert device.most_running <= max_seqs
    if index is not None:
        assert manager.num_used == len(index)
        index.clear()
    assert manager.num_free == num_blocks


def run_all(scheduler: Scheduler, sequences: list[Sequence]) -> Device:
    device = Device(scheduler, lookahead=False)
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.has_work:
        device.step()
    return device


def sequence(
    manager: BlockManager, number: int, prompt: list[int], new: int, priority: int = 0
) -> Sequence:
    return Sequence(
        number, list(prompt), len(prompt), len(prompt) + new, BlockTable(manager), priority, number
    )


def test_a_shared_beginning_is_computed_once_though_all_arrive_together() -> None:
    manager = BlockManager(200, 16)
    scheduler = Scheduler(manager, PrefixIndex(manager), token_budget=64)
    system = list(range(1, 49)) * 4  # 192 tokens, 12 blocks
    run_all(scheduler, [sequence(manager, i, [*system, 50 + i, 7], 3) for i in range(10)])
    counters = scheduler.counters
    assert counters.prompt_tokens == 10 * 194
    assert counters.cached_tokens == 9 * 192


def test_priority_then_arrival_decides_who_goes_first() -> None:
    manager = BlockManager(8, 16)
    scheduler = Scheduler(manager, token_budget=16, max_seqs=1)
    low, late, urgent = (sequence(manager, i, [1, 2, 3], 4, p) for i, p in enumerate([0, 0, 9]))
    for s in (low, late):
        scheduler.add(s)
    assert [c.sequence for c in scheduler.schedule().chunks] == [low]
    scheduler.settle(low, 5)
    scheduler.add(urgent)
    plan = scheduler.schedule()
    assert plan.preempted == [low]
    assert [c.sequence for c in plan.chunks] == [urgent]


def test_waiting_raises_the_rank_until_the_turn_comes() -> None:
    manager = BlockManager(64, 16)
    scheduler = Scheduler(manager, token_budget=16, max_seqs=1)
    patient = sequence(manager, 0, [1, 2], 2, priority=0)
    scheduler.add(patient)
    device = Device(scheduler, lookahead=False)
    rounds = 0
    while patient.status is not Status.FINISHED:
        if not any(s.priority == 3 for s in (*scheduler.running, *scheduler.waiting)):
            rounds += 1
            scheduler.add(sequence(manager, rounds, [3, rounds % 50], 30, priority=3))
        device.step()
        assert rounds < 500


@pytest.mark.parametrize(
    ("answer", "together"),
    [
        (8, 4),  # three blocks each when complete: they fill the pool exactly
        (9, 3),  # four: a newcomer would take the block that another may need
    ],
)
def test_a_block_is_left_to_each_that_may_need_one(answer: int, together: int) -> None:
    manager = BlockManager(12, 16)
    scheduler = Scheduler(manager, token_budget=512, max_seqs=4)
    for i in range(4):
        scheduler.add(sequence(manager, i, [i] * 40, answer))
    assert len(scheduler.schedule().chunks) == together


def test_a_fork_shares_its_parent_s_pages() -> None:
    manager = BlockManager(64, 16)
    scheduler = Scheduler(manager, token_budget=512)
    parent = sequence(manager, 0, [1] * 100, 20)
    scheduler.add(parent)
    (chunk,) = scheduler.schedule().chunks
    assert chunk.samples
    used = manager.num_used
    children = [Sequence(i, [1] * 100, 100, 120, BlockTable(manager), 0, 0) for i in (1, 2, 3)]
    for child in children:
        scheduler.fork(parent, child)
        child.in_flight += 1
    assert manager.num_used == used
    for number, s in enumerate((parent, *children)):
        scheduler.settle(s, 10 + number)
    plan = scheduler.schedule()
    assert sum(len(c.copies) for c in plan.chunks) == 3, "one of four keeps the shared tail"
    assert manager.num_used == used + 3


def test_what_can_never_fit_is_refused_with_the_arithmetic() -> None:
    manager = BlockManager(4, 16)
    scheduler = Scheduler(manager)
    with pytest.raises(
        RequestError, match=r"70 tokens \(60 of prompt\), which takes 5 blocks"
    ) as e:
        scheduler.add(sequence(manager, 0, [1] * 60, 10))
    assert "the pool has 4 blocks, 64 tokens" in str(e.value)
    assert not scheduler.has_work
