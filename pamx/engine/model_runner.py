"""Runs the steps that the scheduler planned: moves their pages, packs their rows, gives logits."""

from __future__ import annotations

import itertools

import mlx.core as mx

from pamx.attention.step import Packing, SequenceSlice, Step
from pamx.engine.scheduler import Chunk, Plan
from pamx.engine.sequence import Sequence
from pamx.kv.swap import SwapSpace
from pamx.substitute.needs import prefill_chunk
from pamx.substitute.paged_model import PagedModel


class ModelRunner:
    """A model on its pages, as the scheduler's plans use it.

    Args:
        paged: The model.
        swap: Where the pages of preempted sequences wait.
    """

    def __init__(self, paged: PagedModel, swap: SwapSpace) -> None:
        self._paged = paged
        self._swap = swap

    def move_pages(self, plan: Plan) -> None:
        """Saves, copies and restores the pages that a plan moves, in this order."""
        for sequence, blocks in plan.swap_out:
            self._swap.save(sequence.id, blocks)
        # Copies first, in the order in which they were planned: a block that one of them reads may
        # have been given away since, to a later copy or to a sequence that is restored.
        for chunk in plan.chunks:
            self._paged.pool.copy(chunk.copies)
        for sequence, blocks in plan.swap_in:
            if not self._swap.restore(sequence.id, blocks):
                self._recompute(sequence, blocks)

    def _recompute(self, sequence: Sequence, blocks: list[int]) -> None:
        """Fills pages whose swapped contents were lost, from the tokens."""
        size = self._paged.pool.block_size
        # All but the newest block or two are full; the scheduler's chunk begins where they end.
        total = min(len(blocks) * size, len(sequence.tokens))
        chunk = prefill_chunk(self._paged.compute.mode)
        for start in range(0, total, chunk):
            end = min(start + chunk, total)
            part = SequenceSlice(tuple(blocks), end, end - start)
            step = Step([part], Packing.SEQUENCE, self._paged.pool.num_blocks, size)
            self._paged.forward(step, mx.array(sequence.tokens[start:end]), [0])
            mx.eval(self._paged.arrays())

    def logits(
        self, chunks: list[Chunk], queued: tuple[dict[Sequence, int], mx.array] | None = None
    ) -> mx.array | None:
        """Runs the model over a step's chunks; lazy.

        Args:
            chunks: The step.
            queued: For each sequence of which the step before is choosing a token, the row of that
                among its tokens.

        Returns:
            [sampling chunks, vocabulary]: of their last rows, in order; None if no chunk samples.
        """
        groups = [chunks] if self._paged.admission.rows else [[chunk] for chunk in chunks]
        outputs = []
        for group in groups:
            slices = [
                SequenceSlice(tuple(c.sequence.table.blocks), c.start + c.count, c.count)
                for c in group
            ]
            packing = Packing.SEQUENCE if len(group) == 1 else Packing.ROWS
            pool = self._paged.pool
            step = Step(slices, packing, pool.num_blocks, pool.block_size)
            ends = list(itertools.accumulate(c.count for c in group))
            rows = [end - 1 for end, c in zip(ends, group, strict=True) if c.samples]
            logits = self._paged.forward(step, self._inputs(group, queued), rows or [0])
            if rows:
                outputs.append(logits)
        return mx.concatenate(outputs) if outputs else None

    def _inputs(
        self, chunks: list[Chunk], queued: tuple[dict[Sequence, int], mx.array] | None
    ) -> mx.array:
        """[tokens] ids; those that the step before is choosing are taken from it."""
        ids: list[int] = []
        unknown: list[tuple[int, int]] = []  # (packed row, row of the queued tokens)
        rows, tokens = queued or ({}, mx.zeros((0,), mx.int32))
        for chunk in chunks:
            known = chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
            ids += known
            if len(known) < chunk.count:
                unknown.append((len(ids), rows[chunk.sequence]))
                ids.append(0)
        packed = mx.array(ids, mx.int32)
        if unknown:
            at, source = (mx.array(column, mx.int32) for column in zip(*unknown, strict=True))
            packed[at] = tokens[source]
        return packed
