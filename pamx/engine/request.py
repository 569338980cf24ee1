"""What somebody wants answered, in the engine's terms: token ids and settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from pamx.engine.checks import known_ids, stop_strings, token_ids, whole
from pamx.engine.sampling import Sampling
from pamx.errors import RequestError


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it.

    Attributes:
        id: Names the request in what comes back; unique among those that are not finished.
        prompt: Token ids.
        max_tokens: Longest answer; None: until the model ends it or the context is full.
        sampling: How tokens are drawn.
        stop: Strings that end an answer; they are not part of it.
        stop_tokens: Token ids that end an answer, besides the model's own.
        min_tokens: An answer's end is put off until it has this many tokens.
        n: Answers wanted; they share the prompt's pages.
        priority: Higher goes first.

    Raises:
        RequestError: a value is out of range, or of another kind than it must be.
    """

    id: str
    prompt: list[int]
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    min_tokens: int = 0
    n: int = 1
    priority: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise RequestError(f"The id of a request is {self.id!r}; it must be a string.")
        if not isinstance(self.sampling, Sampling):
            raise RequestError(f"sampling is {self.sampling!r}; it must be a pamx.Sampling.")
        prompt = token_ids("The prompt of a request", self.prompt)
        if not prompt:
            raise RequestError("The prompt is empty.", "Write something for the model to answer.")
        max_tokens = self.max_tokens
        if max_tokens is not None:
            max_tokens = whole("max_tokens", max_tokens, "at least 1", 1)
        min_tokens = whole("min_tokens", self.min_tokens, "0 or more", 0)
        if max_tokens is not None and min_tokens > max_tokens:
            raise RequestError(f"min_tokens is {min_tokens}, more than max_tokens, {max_tokens}.")
        checked = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stop": stop_strings(self.stop),
            "stop_tokens": frozenset(token_ids("stop_tokens", self.stop_tokens)),
            "min_tokens": min_tokens,
            "n": whole("n", self.n, "from 1 to 128", 1, 128),
            "priority": whole("priority", self.priority, "a 32-bit number", -(2**31), 2**31 - 1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def check_ids(self, vocabulary: int | None) -> None:
        """Raises RequestError if an id is not in a vocabulary of this size."""
        known_ids(self.prompt, vocabulary)
        known_ids(self.stop_tokens, vocabulary, " of stop_tokens")
        known_ids(self.sampling.logit_bias, vocabulary, " of logit_bias")
