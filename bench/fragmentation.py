"""KV memory reserved against KV memory in use, on a trace of 2,000 requests.

    python bench/fragmentation.py [--requests 2000]

Prompt and answer lengths are lognormal, arrivals are Poisson; the pool is small enough to run out
now and then. The trace goes through the real scheduler and block manager. The executor only keeps
books: it settles each step's tokens a step later, as the engine does, and every answer ends at a
length that the scheduler is not told. After each round, the tokens whose keys and values are
held by running sequences are compared with the slots that their blocks take. A block that a
sequence has begun and not filled is the granularity of pages; "beyond last blocks" leaves that
slack out, so that it shows blocks which are held for nothing. Contiguous reservation would give
each of these running sequences its room at the start: the context's length, or its prompt's
length and its limit. Writes bench/results/fragmentation.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass, field
from typing import Any

from record import write_result

from pamx.engine.scheduler import Plan, Scheduler
from pamx.engine.sequence import Sequence, Status
from pamx.kv import BlockManager, BlockTable

CONTEXT = 4096
LIMIT = 1024  # max_tokens of every request
PROMPT = (math.log(180), 1.0)  # of the lognormal distributions: mean and deviation of the log
ANSWER = (math.log(120), 0.8)
POOL_TOKENS, MAX_SEQS, TOKEN_BUDGET = 16_384, 48, 512
ARRIVALS = 0.18  # requests a round


@dataclass(frozen=True)
class Job:
    """A request of the trace: when it comes, and how long its prompt and its answer are."""

    arrival: float
    prompt: int
    answer: int


def make_trace(count: int) -> list[Job]:
    rng = random.Random(42)
    now, jobs = 0.0, []
    for _ in range(count):
        now += rng.expovariate(ARRIVALS)
        prompt = min(max(1, round(rng.lognormvariate(*PROMPT))), CONTEXT - LIMIT)
        jobs.append(Job(now, prompt, min(max(1, round(rng.lognormvariate(*ANSWER))), LIMIT)))
    return jobs


@dataclass
class Ratio:
    """Largest and mean of a ratio over rounds; the mean weighs each round by its tokens."""

    largest: float = 0.0
    above: int = 0
    below: int = 0

    def add(self, reserved: int, live: int) -> None:
        self.largest = max(self.largest, reserved / live)
        self.above += reserved
        self.below += live

    def figures(self) -> dict[str, float]:
        return {"max": round(self.largest, 4), "mean": round(self.above / self.below, 4)}


@dataclass
class Books:
    """What the rounds added up to."""

    plain: Ratio = field(default_factory=Ratio)
    beyond_last_blocks: Ratio = field(default_factory=Ratio)
    contiguous_context: Ratio = field(default_factory=Ratio)
    contiguous_limit: Ratio = field(default_factory=Ratio)
    rounds: int = 0
    most_running: int = 0

    def note(self, scheduler: Scheduler) -> None:
        running, size = scheduler.running, scheduler.manager.block_size
        live = sum(s.table.num_tokens for s in running)
        reserved = scheduler.manager.num_used * size
        if not live:
            assert reserved == 0, "blocks are held by nobody"
            return
        slack = sum(-s.table.num_tokens % size for s in running)
        self.rounds += 1
        self.most_running = max(self.most_running, len(running))
        self.plain.add(reserved, live)
        self.beyond_last_blocks.add(reserved - slack, live)
        self.contiguous_context.add(CONTEXT * len(running), live)
        self.contiguous_limit.add(sum(s.max_len for s in running), live)


def run(jobs: list[Job], block_size: int) -> dict[str, Any]:
    manager = BlockManager(POOL_TOKENS // block_size, block_size)
    scheduler = Scheduler(manager, token_budget=TOKEN_BUDGET, max_seqs=MAX_SEQS)
    books = Books()
    ends: dict[Sequence, int] = {}
    todo = [(job.arrival, number) for number, job in enumerate(jobs)][::-1]
    previous = Plan()
    rounds = 0
    while todo or scheduler.has_work:
        while todo and todo[-1][0] <= rounds:
            number = todo.pop()[1]
            job = jobs[number]
            sequence = Sequence(
                id=number,
                tokens=[1] * job.prompt,
                prompt_len=job.prompt,
                max_len=job.prompt + LIMIT,
                table=BlockTable(manager),
                arrival=number,
            )
            ends[sequence] = job.prompt + job.answer
            scheduler.add(sequence)
        plan = scheduler.schedule()
        books.note(scheduler)
        settle(scheduler, previous, ends)
        previous = plan
        rounds += 1
    assert not ends
    assert manager.num_used == 0, "a page was lost"
    return {
        "block_size": block_size,
        "rounds_with_tokens": books.rounds,
        "most_running": books.most_running,
        "preemptions": scheduler.counters.preemptions,
        "peak_pool_use": round(scheduler.counters.peak_blocks / manager.num_blocks, 4),
        "reserved_over_live": books.plain.figures(),
        "reserved_over_live_beyond_last_blocks": books.beyond_last_blocks.figures(),
        "contiguous_of_context_over_live": books.contiguous_context.figures(),
        "contiguous_of_prompt_and_limit_over_live": books.contiguous_limit.figures(),
    }


def settle(scheduler: Scheduler, plan: Plan, ends: dict[Sequence, int]) -> None:
    """Tells the tokens that a step chose."""
    for chunk in plan.chunks:
        sequence = chunk.sequence
        if chunk.samples and sequence.status is not Status.FINISHED:
            scheduler.settle(sequence, 1)
            if len(sequence.tokens) >= ends[sequence]:
                scheduler.finish(sequence)
                del ends[sequence]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    args = parser.parse_args()
    jobs = make_trace(args.requests)
    trace = {
        "requests": len(jobs),
        "prompt_tokens": sum(job.prompt for job in jobs),
        "answer_tokens": sum(job.answer for job in jobs),
        "longest_prompt": max(job.prompt for job in jobs),
        "longest_answer": max(job.answer for job in jobs),
        "context": CONTEXT,
        "max_tokens": LIMIT,
        "pool_tokens": POOL_TOKENS,
        "max_seqs": MAX_SEQS,
    }
    print(json.dumps(trace))
    rows = []
    for block_size in (8, 16, 32):
        rows.append(run(jobs, block_size))
        print(json.dumps(rows[-1]), flush=True)
    write_result(
        "fragmentation",
        "KV slots reserved over KV slots in use, by block size",
        f"python bench/fragmentation.py --requests {args.requests}",
        {"trace": trace, "block_sizes": rows},
    )


if __name__ == "__main__":
    main()
