"""How a token is drawn: the settings, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pamx.engine.checks import as_float, real, token_ids, whole
from pamx.errors import RequestError

# A penalty that outweighs every logit.
_STRONGEST = 10_000


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
        RequestError: a value is out of range, or of another kind than it must be.
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
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(
                f"logit_bias is {self.logit_bias!r}; it must give token ids their numbers."
            )
        small = 5e-324  # the least that is above 0
        penalty = f"from -{_STRONGEST:,} to {_STRONGEST:,}", -_STRONGEST, _STRONGEST
        repetition = "from 0.01 to 100", 0.01, 100
        checked: dict[str, object] = {
            "temperature": real("temperature", self.temperature, "0 or more", 0),
            "top_p": real("top_p", self.top_p, "above 0 and at most 1", small, 1),
            "top_k": whole("top_k", self.top_k, "0 or more", 0),
            "min_p": real("min_p", self.min_p, "from 0 to 1", 0, 1),
            "repetition_penalty": real("repetition_penalty", self.repetition_penalty, *repetition),
            "presence_penalty": real("presence_penalty", self.presence_penalty, *penalty),
            "frequency_penalty": real("frequency_penalty", self.frequency_penalty, *penalty),
            "logit_bias": dict(_bias(token, bias) for token, bias in self.logit_bias.items()),
        }
        if self.seed is not None:
            checked["seed"] = whole("seed", self.seed, "0 to 2^64 - 1", 0, 2**64 - 1)
        if self.logprobs is not None:
            checked["logprobs"] = whole("logprobs", self.logprobs, "from 0 to 20", 0, 20)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def needs_history(self) -> bool:
        """Whether a draw depends on which tokens came before."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1
        return any(penalties)


def _bias(token: object, bias: object) -> tuple[int, float]:
    (index,) = token_ids("The keys of logit_bias", [token])
    number = as_float(bias)
    if number is None or math.isnan(number):
        raise RequestError(f"logit_bias of token {token} is {bias!r}, which is not a number.")
    return index, number
