"""What a line of a batch file becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pamx.engine import Message

Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True)
class Options:
    """How one request is to be answered; names and meanings as in `pamx.engine.Sampling`.

    Attributes:
        max_tokens: Longest answer; None: what the context leaves.
        n: Answers to draw.
        stop: Texts that end an answer.
        stop_token_ids: Tokens that end an answer.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None


@dataclass(frozen=True)
class Row:
    """One request.

    Attributes:
        line: Its line in the file, from 1.
        custom_id: Unique in the file; the line number if the row names none.
        prompt: Text, messages or token ids.
        raw: Text is continued as it is, without the chat template.
        options: The command line's, and the row's own over them.
        priority: Higher ones are answered earlier.
        endpoint: The OpenAI endpoint that was asked, or None for other formats.
        fingerprint: The same for the same id, prompt, options and model.
    """

    line: int
    custom_id: str
    prompt: str | list[Message] | list[int]
    raw: bool
    options: Options
    priority: int
    endpoint: Endpoint | None
    fingerprint: str


@dataclass(frozen=True)
class BadRow:
    """A line that is no request, and why, in a sentence without its full stop."""

    line: int
    reason: str


@dataclass(frozen=True)
class Notice:
    """Something about a line that does not keep it from being answered."""

    line: int
    text: str


RowEvent = Row | BadRow | Notice
