"""The step loop of one sequence: prefill in chunks, then one token a step."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.engine.draw import Drawn, Sampler
from pamx.engine.slot import Slot
from pamx.errors import ModelError

# Steps between two emptyings of MLX's buffer cache, which otherwise keeps a buffer for every
# context length that has gone by.
CLEAR_EVERY = 256


def check_numbers(logits: mx.array) -> None:
    """Raises ModelError if any logit is NaN: whatever is drawn from them would be noise."""
    if bool(mx.isnan(mx.max(logits))):
        raise not_numbers()


def not_numbers() -> ModelError:
    return ModelError(
        "The model's output is not numbers (NaN).",
        "Its weights or its config.json are damaged; fetch the model again.",
    )


def prefill(model: Module, slot: Slot, prompt: list[int], chunk: int) -> Iterator[None]:
    """Computes the keys and values of the prompt's tokens that `slot` lacks, but the last.

    Yields after each piece of `chunk` tokens, so that a caller can stop there.
    """
    while (start := len(slot.tokens)) < len(prompt) - 1:
        tokens = prompt[start : min(start + chunk, len(prompt) - 1)]
        with slot.step(tokens) as caches:
            # Only the caches are evaluated: the logits, and the output projection that makes
            # them, are never computed.
            model(mx.array([tokens]), cache=caches)
            mx.eval(slot.sequence.arrays())
        mx.clear_cache()
        yield


def decode(
    model: Module, slot: Slot, last: int, sampler: Sampler, limit: int, lookahead: bool
) -> Iterator[int]:
    """Yields up to `limit` tokens that follow the slot's tokens and `last`.

    Args:
        last: The prompt's last token, which the slot does not hold yet.
        sampler: Chooses from logits [1, vocabulary] at the index of the new token.
        limit: Most tokens.
        lookahead: Queue the next step before a token is handed out, so that it runs while the
            caller works. If the caller stops, the queued step is only lost time: the slot then
                holds the token that was handed out last.

    Raises:
        ModelError: the model's output is not numbers.
    """

    def step(inputs: mx.array, token: int | None, index: int) -> Drawn:
        with slot.step(None if token is None else [token]) as caches:
            logits: mx.array = model(inputs, cache=caches)
            new = sampler(logits[:, -1], index)
            mx.async_eval(new.arrays())  # type: ignore[no-untyped-call]
        if index == 0:
            check_numbers(logits[:, -1])
        return new

    new = step(mx.array([[last]]), last, 0)
    for index in range(1, limit + 1):
        new.settle()
        ahead = step(new.tokens[:, None], None, index) if lookahead and index < limit else None
        token = int(new.tokens)
        if ahead is not None:
            slot.settle(token)
        yield token
        if index % CLEAR_EVERY == 0:
            mx.clear_cache()
        if index < limit:
            new = step(mx.array([[token]]), token, index) if ahead is None else ahead
