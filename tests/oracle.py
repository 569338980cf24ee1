"""Paged attention in float64 NumPy, written for clarity alone: what every kernel must equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def attention(
    queries: Array,
    keys: Array,
    values: Array,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int | None = None,
    sinks: Array | None = None,
) -> Array:
    """Causal attention of one sequence's last tokens over all of its tokens.

    Args:
        queries: [tokens, heads, k_dim]; the last query stands at the last key's position.
        keys: [context, kv_heads, k_dim].
        values: [context, kv_heads, v_dim].

    Returns:
        [tokens, heads, v_dim]
    """
    tokens, heads, _ = queries.shape
    context, kv_heads, _ = keys.shape
    out = np.zeros((tokens, heads, values.shape[-1]))
    for t in range(tokens):
        position = context - tokens + t
        first = 0 if window is None else max(0, position - window + 1)
        for h in range(heads):
            kv = h // (heads // kv_heads)
            scores = keys[first : position + 1, kv] @ queries[t, h] * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            top = scores.max() if sinks is None else max(scores.max(), sinks[h])
            weights = np.exp(scores - top)
            total = weights.sum() + (0.0 if sinks is None else np.exp(sinks[h] - top))
            out[t, h] = weights @ values[first : position + 1, kv] / total
    return out


@dataclass
class Case:
    """A random step: sequences that already have pages, and new tokens for each."""

    context_lens: list[int]
    query_lens: list[int]
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    block_size: int
    spare_blocks: int = 3
    seed: int = 0
    scale: float = 0.0
    softcap: float = 0.0
    window: int | None = None
    sinks: bool = False

    def build(self) -> Step:
        return Step(self)


class Step:
    """The arrays of a Case, with NaN in every slot that no token owns.

    `key_pool` and `value_pool` hold what was there before the step; `keys`, `values` and
    `queries` are the new rows, packed: [tokens, heads, dim].
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(case.seed)
        size = case.block_size
        needed = [-(-n // size) for n in case.context_lens]
        self.num_blocks = sum(needed) + case.spare_blocks
        ids = rng.permutation(self.num_blocks)
        # Entries past a sequence's last block must never be read: make them wild.
        self.block_tables = np.full((len(needed), max(needed) + 1), 1_000_000_000, np.int32)
        for s, n in enumerate(needed):
            self.block_tables[s, :n], ids = ids[:n], ids[n:]
        self.context_lens = np.array(case.context_lens, np.int32)
        self.query_starts = np.cumsum([0, *case.query_lens]).astype(np.int32)
        tokens = int(self.query_starts[-1])

        def normal(*shape: int) -> npt.NDArray[np.float32]:
            return rng.standard_normal(shape).astype(np.float32)

        self.queries = normal(tokens, case.heads, case.k_dim)
        self.sinks = normal(case.heads) if case.sinks else None
        self.scale = case.scale or case.k_dim**-0.5
        self.case = case
        self.sequence_keys = [normal(n, case.kv_heads, case.k_dim) for n in case.context_lens]
        self.sequence_values = [normal(n, case.kv_heads, case.v_dim) for n in case.context_lens]
        self.keys = np.concatenate(
            [k[-q:] for k, q in zip(self.sequence_keys, case.query_lens, strict=True)]
        )
        self.values = np.concatenate(
            [v[-q:] for v, q in zip(self.sequence_values, case.query_lens, strict=True)]
        )
        self.key_pool = self._pool(self.sequence_keys, case.k_dim)
        self.value_pool = self._pool(self.sequence_values, case.v_dim)

    def _pool(self, rows: list[npt.NDArray[np.float32]], dim: int) -> npt.NDArray[np.float32]:
        case = self.case
        pool = np.full((self.num_blocks, case.block_size, case.kv_heads, dim), np.nan, np.float32)
        for s, sequence in enumerate(rows):
            for position in range(case.context_lens[s] - case.query_lens[s]):
                block, slot = divmod(position, case.block_size)
                pool[self.block_tables[s, block], slot] = sequence[position]
        return pool

    def expected_pools(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The pools after the step: the new rows written, nothing else touched."""
        keys, values = self.key_pool.copy(), self.value_pool.copy()
        for s, n in enumerate(self.case.context_lens):
            for position in range(n - self.case.query_lens[s], n):
                block, slot = divmod(position, self.case.block_size)
                keys[self.block_tables[s, block], slot] = self.sequence_keys[s][position]
                values[self.block_tables[s, block], slot] = self.sequence_values[s][position]
        return keys, values

    def expected(self) -> Array:
        """[tokens, heads, v_dim] in float64."""
        out = []
        for s in range(len(self.case.context_lens)):
            first, last = self.query_starts[s : s + 2]
            out.append(
                attention(
                    self.queries[first:last].astype(np.float64),
                    self.sequence_keys[s].astype(np.float64),
                    self.sequence_values[s].astype(np.float64),
                    scale=self.scale,
                    softcap=self.case.softcap,
                    window=self.case.window,
                    sinks=None if self.sinks is None else self.sinks.astype(np.float64),
                )
            )
        return np.concatenate(out)
