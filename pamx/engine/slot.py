"""A sequence together with the tokens whose keys and values it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from mlx.nn.layers.base import Module
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from pamx.attention.sequence import PagedSequence


class CacheSequence(Protocol):
    """What the engine asks of a sequence, whether it is on pages or on mlx-lm's own caches."""

    @property
    def caches(self) -> list[Any]:
        """One cache for each layer, for the model's `cache` argument."""

    def arrays(self) -> list[Any]:
        """What to evaluate so that everything the caches hold is computed."""

    def trim(self, num_tokens: int) -> int:
        """Keeps the first `num_tokens` tokens, or fewer if need be; returns how many."""

    def close(self) -> None:
        """Gives all memory back; the sequence is empty and usable afterwards."""


class Paged:
    """A sequence on pages."""

    def __init__(self, sequence: PagedSequence) -> None:
        self._sequence = sequence

    @property
    def caches(self) -> list[Any]:
        return list(self._sequence.caches)

    def arrays(self) -> list[Any]:
        return self._sequence.arrays()

    def trim(self, num_tokens: int) -> int:
        self._sequence.trim(num_tokens)
        return num_tokens

    def close(self) -> None:
        self._sequence.close()


class Dense:
    """A sequence on mlx-lm's own caches, for models that pages do not serve."""

    def __init__(self, model: Module) -> None:
        self._model = model
        self.caches: list[Any] = make_prompt_cache(model)

    def arrays(self) -> list[Any]:
        return [cache.state for cache in self.caches]

    def trim(self, num_tokens: int) -> int:
        sizes = {int(cache.size()) for cache in self.caches}
        # Recurrent states cannot go back, and after a broken step the layers may disagree:
        # then the sequence starts anew.
        if len(sizes) == 1 and can_trim_prompt_cache(self.caches):
            (size,) = sizes
            if size >= num_tokens and trim_prompt_cache(self.caches, size - num_tokens) >= 0:
                return num_tokens
        self.close()
        return 0

    def close(self) -> None:
        self.caches = make_prompt_cache(self._model)


class Slot:
    """Tracks which tokens a sequence holds, so that a new prompt computes only what is new."""

    def __init__(self, sequence: CacheSequence) -> None:
        self.sequence = sequence
        self.tokens: list[int] = []
        self._exact = True  # whether the caches hold `tokens` and no more

    @contextmanager
    def step(self, tokens: Sequence[int] | None) -> Iterator[list[Any]]:
        """The caches for one forward pass over `tokens`, which then count as held.

        None: over one token whose id is not known yet; `settle` tells it.
        """
        self._exact = False
        yield self.sequence.caches
        if tokens is not None:
            self.tokens += tokens
            self._exact = True

    def settle(self, token: int) -> None:
        """Tells the id of the token that the last step was over."""
        self.tokens.append(token)
        self._exact = True

    def reuse(self, prompt: Sequence[int]) -> int:
        """Keeps the longest common beginning with `prompt`, less its last token.

        The last token is always computed: its logits are needed.

        Returns:
            Tokens of the prompt that need not be computed.
        """
        limit = min(len(self.tokens), len(prompt) - 1)
        common = next((i for i in range(limit) if self.tokens[i] != prompt[i]), limit)
        self.keep(common)
        return len(self.tokens)

    def keep(self, num_tokens: int) -> None:
        """Forgets all but the first `num_tokens` tokens; also mends a step that broke off."""
        if not self._exact or num_tokens < len(self.tokens):
            del self.tokens[self.sequence.trim(num_tokens) :]
            self._exact = True

    def close(self) -> None:
        self.tokens.clear()
        self._exact = True
        self.sequence.close()
