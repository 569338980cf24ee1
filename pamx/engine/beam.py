"""Beam search: the few most likely answers, searched side by side over shared pages.

At each place every beam proposes its most likely next tokens; the best `beams` continuations of
all go on. Beams are forks of one another: what they have in common is held in pages once, and a
page is copied only when two beams go on to write different tokens into it. An answer that ends
leaves the search and competes by its score, the sum of its tokens' log-probabilities divided by
its length to the power of `length_penalty` (Wu et al., arXiv:1609.08144, without their constant).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.engine.checks import real, whole
from pamx.engine.steps import check_numbers
from pamx.kv.block_table import BlockTable
from pamx.substitute.needs import prefill_chunk
from pamx.substitute.paged_model import PagedModel

MOST_BEAMS = 32


@dataclass(frozen=True)
class Beam:
    """One answer: its tokens, the one that ended it included, and its score."""

    tokens: list[int]
    score: float
    finished: bool


@dataclass(eq=False)
class _Open:
    """A beam that goes on."""

    table: BlockTable
    tokens: list[int]
    logprob: float


def beam_search(
    paged: PagedModel,
    prompt: list[int],
    *,
    beams: int,
    max_tokens: int,
    end_tokens: Collection[int],
    length_penalty: float = 1.0,
) -> list[Beam]:
    """Returns the `beams` best answers that were found, the best first.

    Args:
        paged: The model on its pages.
        prompt: Token ids.
        beams: How many answers are followed at a time.
        max_tokens: Longest answer.
        end_tokens: Tokens that end an answer.
        length_penalty: 0 favours short answers; larger values favour long ones.

    Raises:
        RequestError: the number of beams or of tokens is out of range.
        OutOfBlocksError: the pool cannot hold the prompt and the beams.
    """
    check_beams(beams)
    real("length_penalty", length_penalty, "from 0 to 10", 0, 10)
    whole("max_tokens", max_tokens, "at least 1", 1)
    first = _Open(BlockTable(paged.manager), [], 0.0)
    tables = [first.table]  # every one that was made
    going = [first]
    ended: list[Beam] = []
    try:
        logprobs = _read_prompt(paged, first.table, prompt)
        for length in range(1, max_tokens + 1):
            going, done = _extend(going, logprobs, beams, end_tokens, tables)
            ended += [_score(b, length_penalty, finished=True) for b in done]
            ended = sorted(ended, key=lambda b: -b.score)[:beams]
            if length == max_tokens or _decided(going, ended, beams, max_tokens, length_penalty):
                break
            logprobs = _step(paged, going)
        if len(ended) < beams:
            ended += [_score(b, length_penalty, finished=False) for b in going]
        return sorted(ended, key=lambda b: -b.score)[:beams]
    finally:
        for table in tables:
            table.close()


def check_beams(beams: object) -> None:
    """Raises RequestError if so many beams cannot be followed."""
    whole("beams", beams, f"from 1 to {MOST_BEAMS}", 1, MOST_BEAMS)


def _extend(
    going: list[_Open],
    logprobs: mx.array,
    beams: int,
    end_tokens: Collection[int],
    tables: list[BlockTable],
) -> tuple[list[_Open], list[_Open]]:
    """Replaces the beams by their best continuations; returns those that go on and that ended.

    The tables of those that go on are put into `tables`.
    """
    # Enough of each row that `beams` are left when every other candidate ends its answer.
    width = min(beams + len(end_tokens), logprobs.shape[-1])
    best = mx.argpartition(-logprobs, kth=width - 1, axis=-1)[:, :width]
    tokens: Any = best.tolist()
    values: Any = mx.take_along_axis(logprobs, best, axis=-1).tolist()
    candidates = [
        (beam.logprob + value, beam, token)
        for beam, row, scores in zip(going, tokens, values, strict=True)
        for token, value in zip(row, scores, strict=True)
    ]
    candidates.sort(key=lambda c: -c[0])
    on: list[_Open] = []
    done: list[_Open] = []
    for logprob, beam, token in candidates[: beams + len(end_tokens) * len(going)]:
        if token in end_tokens:
            if len(on) < beams:
                done.append(_Open(beam.table, [*beam.tokens, token], logprob))
        elif len(on) < beams:
            tables.append(beam.table.fork())
            on.append(_Open(tables[-1], [*beam.tokens, token], logprob))
    for beam in going:
        beam.table.close()
        tables.remove(beam.table)
    return on, done


def _decided(
    going: list[_Open], ended: list[Beam], beams: int, max_tokens: int, length_penalty: float
) -> bool:
    """Whether no beam that goes on can still beat an answer that ended."""
    if len(ended) < beams or not going:
        return not going
    # Log-probabilities only fall; the length that flatters the score most is the longest, or
    # with a negative penalty the present one.
    length = max_tokens if length_penalty > 0 else len(going[0].tokens) + 1
    hope = max(b.logprob for b in going) / float(length**length_penalty)
    return hope <= ended[-1].score


def _score(beam: _Open, length_penalty: float, finished: bool) -> Beam:
    return Beam(beam.tokens, beam.logprob / len(beam.tokens) ** length_penalty, finished)


def _read_prompt(paged: PagedModel, table: BlockTable, prompt: list[int]) -> mx.array:
    """Log-probabilities [1, vocabulary] of the token after the prompt."""
    chunk = prefill_chunk(paged.compute.mode)
    for start in range(0, len(prompt), chunk):
        tokens = prompt[start : start + chunk]
        paged.pool.copy(table.grow(len(tokens)))
        part = SequenceSlice(tuple(table.blocks), table.num_tokens, len(tokens))
        step = Step([part], Packing.SEQUENCE, paged.pool.num_blocks, paged.pool.block_size)
        logits = paged.forward(step, mx.array(tokens), [len(tokens) - 1])
        mx.eval(paged.arrays())
    check_numbers(logits)
    return _log_softmax(logits)


def _step(paged: PagedModel, going: list[_Open]) -> mx.array:
    """Computes each beam's last token; log-probabilities [beams, vocabulary] of the next."""
    copies = [copy for beam in going for copy in beam.table.grow(1)]
    paged.pool.copy(copies)
    slices = [SequenceSlice(tuple(b.table.blocks), b.table.num_tokens, 1) for b in going]
    tokens = mx.array([b.tokens[-1] for b in going])
    size, blocks = paged.pool.block_size, paged.pool.num_blocks
    if paged.admission.rows and len(going) > 1:
        step = Step(slices, Packing.ROWS, blocks, size)
        return _log_softmax(paged.forward(step, tokens, list(range(len(going)))))
    rows = []
    for i, part in enumerate(slices):
        step = Step([part], Packing.SEQUENCE, blocks, size)
        rows.append(paged.forward(step, tokens[i : i + 1], [0]))
    return _log_softmax(mx.concatenate(rows))


def _log_softmax(logits: mx.array) -> mx.array:
    scores = logits.astype(mx.float32)
    out = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
    mx.eval(out)
    return out
