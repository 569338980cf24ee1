"""What somebody wants answered, in the engine's terms: token ids and settings."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        RequestError: a value is out of range.
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
        if not self.prompt:
            raise RequestError("The prompt is empty.", "Write something for the model to answer.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1.")
        if self.min_tokens < 0:
            raise RequestError(f"min_tokens is {self.min_tokens}; it must be 0 or more.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}."
            )
        if not 1 <= self.n <= 128:
            raise RequestError(f"n is {self.n}; it must be from 1 to 128.")
