"""What a request gets back: pieces of text while it runs, a record when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    Attributes:
        text: The answer.
        tokens: Its token ids, the one that ended it included.
        finish_reason: "stop" (end token or stop string), "length" (max_tokens, or the context
            is full) or "cancelled".
        prompt_tokens: Tokens of the prompt.
        cached_tokens: How many of them were in pages already and not computed again.
        ttft: Seconds from the call to the first token.
        decode_seconds: Seconds from the first token to the last.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    ttft: float
    decode_seconds: float

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)

    @property
    def prompt_rate(self) -> float | None:
        """Prompt tokens computed a second, or None before the first token."""
        return (self.prompt_tokens - self.cached_tokens) / self.ttft if self.ttft > 0 else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first, or None for fewer than two tokens."""
        if len(self.tokens) < 2 or self.decode_seconds <= 0:
            return None
        return (len(self.tokens) - 1) / self.decode_seconds


@dataclass(frozen=True)
class Delta:
    """A piece of an answer.

    Attributes:
        text: New text; empty while a character or a possible stop string is incomplete.
        token: The token that came, or None on the last piece.
        completion: The whole answer, on the last piece alone.
    """

    text: str
    token: int | None
    completion: Completion | None = None


@dataclass(frozen=True)
class BeamAnswer:
    """An answer that a beam search found.

    Attributes:
        text: The answer.
        tokens: Its token ids, the one that ended it included.
        score: Sum of its tokens' log-probabilities, over its length to the length penalty.
        finish_reason: "stop" or "length".
    """

    text: str
    tokens: list[int]
    score: float
    finish_reason: FinishReason
