"""Log-probabilities of an answer's tokens, in pamx's results and as the OpenAI API has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pamx.engine.batch import Logprobs


@dataclass(frozen=True)
class Likely:
    """A token, what it says, and the natural logarithm of its probability."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Place:
    """The token that was drawn at one place of an answer, and the likeliest ones there."""

    drawn: Likely
    top: list[Likely]


def place(tokenizer: Any, token: int, found: Logprobs) -> Place:
    """What the engine found out about a token, with the texts of the tokens."""

    def likely(token: int, logprob: float) -> Likely:
        return Likely(token, str(tokenizer.decode([token])), logprob)

    return Place(likely(token, found.chosen), [likely(*one) for one in found.top.items()])


def plain(places: Sequence[Place]) -> list[dict[str, Any]]:
    """One object for each token."""
    return [_plain(one.drawn) | {"top": [_plain(other) for other in one.top]} for one in places]


def for_chat(places: Sequence[Place]) -> dict[str, Any]:
    """The `logprobs` of a chat completion's choice."""
    return {
        "content": [
            _chat(one.drawn) | {"top_logprobs": [_chat(other) for other in one.top]}
            for one in places
        ]
    }


def for_completions(places: Sequence[Place]) -> dict[str, Any]:
    """The `logprobs` of a text completion's choice."""
    texts = [one.drawn.text for one in places]
    return {
        "tokens": texts,
        "token_logprobs": [one.drawn.logprob for one in places],
        "top_logprobs": [{other.text: other.logprob for other in one.top} for one in places],
        "text_offset": list(accumulate((len(text) for text in texts[:-1]), initial=0))
        if texts
        else [],
    }


def _plain(one: Likely) -> dict[str, Any]:
    return {"token": one.token, "text": one.text, "logprob": one.logprob}


def _chat(one: Likely) -> dict[str, Any]:
    return {"token": one.text, "logprob": one.logprob, "bytes": list(one.text.encode())}
