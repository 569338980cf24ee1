"""From logits to the next tokens: bias and penalties, temperature, top-k, top-p, min-p, a seed.

Rows with the same settings are drawn together. A draw inverts the cumulative distribution in the
order of token ids, so it depends on its row, its seed and its index alone. Top-p looks at the most
likely tokens first: nearly always they hold all that it keeps, and sorting the whole vocabulary
costs ten times as much. Where they do not, the row is drawn again, from all tokens.

A draw takes several arrays as large as its logits. Of many rows, a few are drawn at a time, so
that what a draw takes does not grow with a batch.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from pamx.engine.sampling import Sampling

# A temperature below this is none: the division would overflow, and one token has all the weight.
_COLDEST = 1e-5
# A change that outweighs every logit; more would only leave the range of 16-bit numbers.
_STRONGEST = 1e4
# How many of the most likely tokens top-p looks at first.
_CANDIDATES = 1024
# Rows that are drawn, or whose log-probabilities are computed, at a time.
ROWS_TOGETHER = 16

# Changes a row's logits [1, vocabulary] before its token is drawn.
Change = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class Place:
    """Where a token is drawn.

    Attributes:
        sampling: How.
        seed: Of the answer; 64 bits.
        index: Of the token in the answer.
    """

    sampling: Sampling
    seed: int
    index: int


@dataclass(eq=False)
class Drawn:
    """New tokens, of which some may yet have to be drawn, or drawn again.

    Attributes:
        tokens: [rows]; lazy, and right once `settle` has returned.
    """

    tokens: mx.array
    _doubts: list[_Doubt] = field(default_factory=list)
    _late: _Late | None = None

    def arrays(self) -> list[mx.array]:
        """What to evaluate ahead of `settle`, so that it need not wait long."""
        if self._late is not None:
            return [self._late.logits]
        return [self.tokens, *(doubt.sure for doubt in self._doubts)]

    @property
    def is_late(self) -> bool:
        """Whether `settle` has all tokens yet to draw."""
        return self._late is not None

    def settle(self) -> bool:
        """Draws what can only be drawn when the logits are computed.

        Returns:
            Whether a token has changed.
        """
        if self._late is not None:
            late, self._late = self._late, None
            self.tokens = late.draw()
            return True
        doubts, self._doubts = self._doubts, []
        changed = False
        for doubt in doubts:
            sure: list[bool] = doubt.sure.tolist()  # type: ignore[assignment]
            unsure = [i for i, good in enumerate(sure) if not good]
            if unsure:
                rows = mx.array([doubt.rows[i] for i in unsure])
                self.tokens[rows] = doubt.again(unsure)
                changed = True
        return changed


@dataclass(frozen=True, eq=False)
class _Doubt:
    """Rows that were drawn from the most likely tokens alone."""

    rows: list[int]
    sure: mx.array  # [rows]: whether these held all that top-p keeps
    again: Callable[[list[int]], mx.array]  # draws some of the rows from all tokens


def answer_seed(sampling: Sampling, sample: int = 0) -> int:
    """The seed of an answer.

    Args:
        sampling: Its seed, or none: then each call gives another.
        sample: Number of the answer, for several to one prompt.
    """
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    return (seed + sample * 0xD1342543DE82EF95) % 2**64


def draw(
    logits: mx.array,
    places: Sequence[Place],
    rows: Sequence[int] | None = None,
    changes: Mapping[int, Change] | None = None,
) -> Drawn:
    """Draws a token for each place; lazy.

    A token depends on its own row of the logits alone. Bias and penalties are not part of it: see
    `adjust`.

    Args:
        logits: [rows, vocabulary]
        places: Of the tokens.
        rows: Which row of the logits is whose; None: each place has its own.
        changes: Of the logits of some of the places, by number.
    """
    source = list(range(len(places))) if rows is None else list(rows)
    changes = changes or {}
    pieces = _pieces(places, changes)
    if sum(len(piece.rows) for piece in pieces if piece.is_large) > ROWS_TOGETHER:
        late = _Late(logits, places, source, changes, pieces)
        return Drawn(mx.zeros((len(places),), mx.int32), _late=late)
    doubts: list[_Doubt] = []
    parts = []
    for piece in pieces:
        tokens, doubt = piece.draw(logits, places, source, changes)
        parts.append(tokens)
        if doubt is not None:
            doubts.append(replace(doubt, rows=piece.rows))
    return Drawn(_in_order(parts, pieces), doubts)


@dataclass(frozen=True)
class _Piece:
    """Places whose tokens are drawn together.

    Attributes:
        rows: Their numbers.
        greedy: Whether the most likely token is wanted.
        changed: Whether one of them changes its logits.
    """

    rows: list[int]
    greedy: bool
    changed: bool

    @property
    def is_large(self) -> bool:
        """Whether drawing them takes arrays as large as their logits."""
        return self.changed or not self.greedy

    def draw(
        self,
        logits: mx.array,
        places: Sequence[Place],
        source: list[int],
        changes: Mapping[int, Change],
    ) -> tuple[mx.array, _Doubt | None]:
        """[rows] int32, and what may have to be drawn again; lazy."""
        part = taken(logits, [source[row] for row in self.rows])
        if self.changed:
            own = [(part[i : i + 1], changes.get(row)) for i, row in enumerate(self.rows)]
            part = mx.concatenate([row if change is None else change(row) for row, change in own])
        if self.greedy:
            return mx.argmax(part, axis=-1).astype(mx.int32), None
        tokens, doubt = _draw_alike(part, [places[row] for row in self.rows])
        return tokens.astype(mx.int32), doubt


def _pieces(places: Sequence[Place], changes: Mapping[int, Change]) -> list[_Piece]:
    groups: dict[tuple[object, bool], list[int]] = {}
    for row, place in enumerate(places):
        groups.setdefault((_alike(place.sampling), row in changes), []).append(row)
    pieces = []
    for (alike, changed), rows in groups.items():
        whole = _Piece(rows, alike is None, changed)
        size = ROWS_TOGETHER if whole.is_large else len(rows)
        pieces += [
            replace(whole, rows=rows[start : start + size]) for start in range(0, len(rows), size)
        ]
    return pieces


@dataclass(frozen=True, eq=False)
class _Late:
    """A draw of more rows than are drawn together."""

    logits: mx.array
    places: Sequence[Place]
    source: list[int]
    changes: Mapping[int, Change]
    pieces: list[_Piece]

    def draw(self) -> mx.array:
        """[rows], one piece after the other, so that what one has freed is the next one's."""
        mx.eval(self.logits)
        parts = []
        for piece in self.pieces:
            tokens, doubt = piece.draw(self.logits, self.places, self.source, self.changes)
            doubts = [] if doubt is None else [replace(doubt, rows=list(range(len(piece.rows))))]
            drawn = Drawn(tokens, doubts)
            mx.eval(drawn.arrays())
            drawn.settle()
            mx.eval(drawn.tokens)
            parts.append(drawn.tokens)
        return _in_order(parts, self.pieces)


def _in_order(parts: list[mx.array], pieces: list[_Piece]) -> mx.array:
    """The tokens of all pieces, in the order of their rows."""
    order = [row for piece in pieces for row in piece.rows]
    tokens = parts[0] if len(parts) == 1 else mx.concatenate(parts)
    if order == list(range(len(order))):
        return tokens
    return tokens[mx.array(sorted(range(len(order)), key=order.__getitem__))]


def taken(logits: mx.array, rows: list[int]) -> mx.array:
    """These rows; neighbours are not copied."""
    first, count = rows[0], len(rows)
    if rows == list(range(first, first + count)):
        return logits if count == logits.shape[0] else logits[first : first + count]
    return logits[mx.array(rows)]


def _alike(sampling: Sampling) -> tuple[float, int, float, float] | None:
    """What rows must have in common to be drawn together; None: the most likely token."""
    if sampling.temperature < _COLDEST:
        return None
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p


def _draw_alike(logits: mx.array, places: Sequence[Place]) -> tuple[mx.array, _Doubt | None]:
    """Draws rows that share their settings."""
    sampling = places[0].sampling
    uniform = _uniform(places)
    scores = logits.astype(mx.float32)
    # Shifted before it is scaled, so that a tiny temperature cannot overflow. In powers of two,
    # which MLX computes three times as fast on a CPU as those of e.
    scale = math.log2(math.e) / sampling.temperature
    scores = (scores - mx.max(scores, axis=-1, keepdims=True)) * scale
    size = scores.shape[-1]
    lowest = math.log2(sampling.min_p) if sampling.min_p > 0 else -math.inf
    if 0 < sampling.top_k < size:
        return _pick_best(scores, uniform, sampling.top_k, sampling.top_p, lowest)[0], None
    if sampling.top_p == 1:
        if sampling.min_p > 0:
            scores = mx.where(scores < lowest, -mx.inf, scores)
        return _pick(mx.power(2.0, scores), uniform), None
    mass = mx.cumsum(mx.power(2.0, scores), axis=-1)[:, -1:]

    def cut(rows: list[int] | None, count: int) -> tuple[mx.array, mx.array]:
        some = (scores, uniform, mass)
        if rows is not None:
            some = (scores[mx.array(rows)], uniform[mx.array(rows)], mass[mx.array(rows)])
        return _pick_best(*some[:2], count, sampling.top_p, lowest, some[2])

    if size <= _CANDIDATES:
        return cut(None, size)[0], None
    tokens, sure = cut(None, _CANDIDATES)
    return tokens, _Doubt([], sure, lambda rows: cut(rows, size)[0])


def _pick_best(
    scores: mx.array,
    uniform: mx.array,
    count: int,
    top_p: float,
    lowest: float,
    mass: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Draws from the `count` best tokens, as far as top-p and min-p keep them.

    Args:
        scores: [rows, vocabulary] logarithms to base 2; the largest of each row is 0.
        uniform: [rows, 1]
        lowest: Scores below this are not kept.
        mass: [rows, 1] of which top-p is a part; None: that of the best.

    Returns:
        [rows] tokens; [rows] whether the best hold all that is kept.
    """
    ids, best = None, scores
    if count < scores.shape[-1]:
        ids = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
        # In the order of ids, so that a draw is the same from a few tokens as from all.
        ids = mx.sort(ids, axis=-1)
        best = mx.take_along_axis(scores, ids, axis=-1)
    kept = best >= lowest
    falling = -mx.sort(-best, axis=-1)
    least = falling[:, -1:]
    sure = least < lowest
    if top_p < 1:
        weights = mx.power(2.0, falling)
        above = mx.cumsum(weights, axis=-1, inclusive=False)
        reached = above[:, -1:] + weights[:, -1:]
        mass = reached if mass is None else mass
        # Above float32's smallest number, for a part of nothing would keep nothing.
        wanted = mass * max(top_p, 1e-30)
        number = mx.sum(above < wanted, axis=-1, keepdims=True)
        threshold = mx.take_along_axis(falling, number - 1, axis=-1)
        kept = kept & (best >= threshold)  # what is as likely as the last of them stays, too
        sure = sure | ((reached >= wanted) & (least < threshold))
    weights = mx.where(kept, mx.power(2.0, best), 0.0)
    tokens = _pick(weights, uniform)
    if ids is not None:
        tokens = mx.take_along_axis(ids, tokens[:, None], axis=-1)[:, 0]
    return tokens, sure[:, 0]


def _pick(weights: mx.array, uniform: mx.array) -> mx.array:
    """[rows] indices, each as likely as its weight [rows, tokens]; `uniform` [rows, 1] decides."""
    reached = mx.cumsum(weights, axis=-1)
    return mx.sum(reached < uniform * reached[:, -1:], axis=-1)


def _uniform(places: Sequence[Place]) -> mx.array:
    """[rows, 1] numbers above 0 and below 1: each index of each seed has a key of its own."""
    keys = [
        (
            (place.seed >> 32) ^ (place.index * 0x9E3779B9 & 0xFFFFFFFF),
            (place.seed & 0xFFFFFFFF) ^ (place.index >> 32),
        )
        for place in places
    ]
    number = mx.vmap(lambda key: mx.random.uniform(shape=(1,), key=key))
    drawn: mx.array = number(mx.array(keys, mx.uint32))
    # Never 0, at which tokens without weight would be drawn.
    return mx.maximum(drawn, 2.0**-40)


# (logits [1, vocabulary], index of the new token) -> [1]
Sampler = Callable[[mx.array, int], Drawn]


def history_sampler(sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Sampler:
    """Draws the tokens of one answer, bias and penalties included.

    Args:
        prompt: Tokens before the answer.
        answer: The answer so far, which the caller appends to. With `sampling.needs_history` it
            must have every token before the one that is drawn.
    """
    seed = answer_seed(sampling)

    def sampler(logits: mx.array, index: int) -> Drawn:
        if sampling.logit_bias or sampling.needs_history:
            logits = adjust(logits, sampling, prompt, answer)
        return draw(logits, [Place(sampling, seed, index)])

    return sampler


def adjust(
    logits: mx.array,
    sampling: Sampling,
    prompt: Sequence[int],
    answer: Sequence[int],
    banned: Collection[int] = (),
) -> mx.array:
    """Applies bias, penalties and bans to logits [1, vocabulary]; lazy.

    Args:
        prompt: Tokens before the answer.
        answer: The answer so far.
        banned: Tokens that may not come now.
    """
    size = logits.shape[-1]
    if sampling.repetition_penalty != 1:
        seen = _ids({*prompt, *answer}, size)
        if seen.size:
            chosen = logits[:, seen]
            penalty = sampling.repetition_penalty
            logits = mx.put_along_axis(
                logits, seen[None], mx.where(chosen > 0, chosen / penalty, chosen * penalty), -1
            )
    change: dict[int, float] = dict.fromkeys(sampling.logit_bias, 0.0)
    for token, count in Counter(answer).items():
        change[token] = -sampling.presence_penalty - sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias.items():
        change[token] += min(bias, _STRONGEST)
    for token in banned:
        change[token] = -math.inf
    change = {t: min(c, _STRONGEST) for t, c in change.items() if c and 0 <= t < size}
    if change:
        values = mx.array(list(change.values()), mx.float32).astype(logits.dtype)
        logits = logits.at[:, mx.array(list(change), mx.int32)].add(values)
    return logits


def _ids(tokens: set[int], size: int) -> mx.array:
    return mx.array(sorted(t for t in tokens if 0 <= t < size), mx.int32)
