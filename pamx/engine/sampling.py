"""From logits to the next token: penalties, temperature, top-k, top-p, min-p, and a seed."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from pamx.errors import RequestError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    The logits are changed by the bias and the penalties, divided by the temperature, and cut by
    top-k, top-p and min-p, in that order.

    Attributes:
        temperature: 0 takes the most likely token; higher is more varied.
        top_p: Keep the smallest set of tokens whose probabilities reach this sum; 1 keeps all.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        min_p: Keep tokens at least this likely relative to the most likely one; 0 keeps all.
        seed: Repeats a draw exactly; None draws anew each time.
        repetition_penalty: Divides positive and multiplies negative logits of tokens that are in
            the prompt or the answer (arXiv:1909.05858); 1 changes nothing.
        presence_penalty: Taken from the logit of each token that is in the answer.
        frequency_penalty: Taken from a token's logit as often as it is in the answer.
        logit_bias: Added to the logits of these token ids.
        logprobs: How many of the most likely tokens to report with their log-probabilities, at
            each place, beside the one that was drawn; None reports nothing. Batches alone have
            a place for them.

    Raises:
        RequestError: a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    def __post_init__(self) -> None:
        logprobs_good = self.logprobs is None or 0 <= self.logprobs <= 20
        for name, value, allowed, good in (
            ("temperature", self.temperature, "0 or more", self.temperature >= 0),
            ("top_p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1),
            ("top_k", self.top_k, "0 or more", self.top_k >= 0),
            ("min_p", self.min_p, "from 0 to 1", 0 <= self.min_p <= 1),
            ("seed", self.seed, "0 to 2^64 - 1", self.seed is None or 0 <= self.seed < 2**64),
            (
                "repetition_penalty",
                self.repetition_penalty,
                "from 0.01 to 100",
                0.01 <= self.repetition_penalty <= 100,
            ),
            ("presence_penalty", self.presence_penalty, "a finite number", True),
            ("frequency_penalty", self.frequency_penalty, "a finite number", True),
            ("logprobs", self.logprobs, "from 0 to 20", logprobs_good),
        ):
            if not good or (isinstance(value, float) and not math.isfinite(value)):
                raise RequestError(f"{name} is {value}; it must be {allowed}.")
        for token, bias in self.logit_bias.items():
            if math.isnan(bias):
                raise RequestError(f"logit_bias of token {token} is not a number.")

    @property
    def needs_history(self) -> bool:
        """Whether a draw depends on which tokens came before."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1
        return any(penalties)


# A temperature below this is none: the division would overflow, and one token has all the weight.
_COLDEST = 1e-5

# A bias that outweighs every logit; more would only leave the range of 16-bit numbers.
_STRONGEST = 1e4

# (logits [1, vocabulary], index of the new token) -> [1]
Sampler = Callable[[mx.array, int], mx.array]


def make_sampler(sampling: Sampling, sample: int = 0) -> Sampler:
    """Returns a lazy function of (logits [rows, vocabulary], index of the new token).

    The draw depends on the logits, the seed and the index alone, not on what else this process
    has drawn. Bias and penalties are not part of it: see `adjust`.

    Args:
        sampling: The settings.
        sample: Number of the sample, for several answers to one prompt.
    """
    if sampling.temperature < _COLDEST:
        return lambda logits, _: mx.argmax(logits, axis=-1)
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    base = mx.random.key((seed + sample * 0xD1342543DE82EF95) % 2**64)

    def draw(logits: mx.array, index: int) -> mx.array:
        scores = logits.astype(mx.float32)
        # Shifted before it is scaled, so that a tiny temperature cannot overflow.
        scores = (scores - mx.max(scores, axis=-1, keepdims=True)) * (1 / sampling.temperature)
        scores = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        if 0 < sampling.top_k < scores.shape[-1]:
            scores = apply_top_k(scores, sampling.top_k)
        if sampling.top_p < 1:
            # Above float32's smallest number, for a sum of nothing would keep nothing.
            scores = apply_top_p(scores, max(sampling.top_p, 1e-30))
        if sampling.min_p > 0:
            scores = apply_min_p(scores, sampling.min_p)
        # Each index of each seed has a key of its own.
        place = mx.array([index * 0x9E3779B9 & 0xFFFFFFFF, index >> 32], mx.uint32)
        return mx.random.categorical(scores, key=base ^ place)

    return draw


def history_sampler(sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Sampler:
    """A sampler that also applies bias and penalties.

    Args:
        prompt: Tokens before the answer.
        answer: The answer so far, which the caller appends to. With `sampling.needs_history` it
            must have every token before the one that is drawn.
    """
    draw = make_sampler(sampling)
    if not (sampling.logit_bias or sampling.needs_history):
        return draw
    return lambda logits, index: draw(adjust(logits, sampling, prompt, answer), index)


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
    change: Counter[int] = Counter()
    for token, count in Counter(answer).items():
        change[token] -= sampling.presence_penalty + sampling.frequency_penalty * count  # type: ignore[assignment]
    for token, bias in sampling.logit_bias.items():
        change[token] += min(bias, _STRONGEST)  # type: ignore[assignment]
    for token in banned:
        change[token] = -math.inf  # type: ignore[assignment]
    change = Counter({t: c for t, c in change.items() if c and 0 <= t < size})
    if change:
        values = mx.array(list(change.values()), mx.float32).astype(logits.dtype)
        logits = logits.at[:, mx.array(list(change), mx.int32)].add(values)
    return logits


def _ids(tokens: set[int], size: int) -> mx.array:
    return mx.array(sorted(t for t in tokens if 0 <= t < size), mx.int32)
