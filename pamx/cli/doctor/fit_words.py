"""The answer to "does it fit" in sentences: the verdict, the most that fits, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from pamx.cli.doctor.fit import MOST_SEQUENCES
from pamx.kv.budget import TO_SPARE, MemoryBudget
from pamx.sizes import bytes_text, counted, need_and_left


@dataclass(frozen=True)
class Finding:
    """What was asked and what came out.

    Attributes:
        name: Of the model.
        context, batch: Tokens of a sequence, and sequences.
        trained: Tokens that the model was made for; None: unknown.
        kv_bytes, peak: What the sequences keep; the most that the process holds.
        budget: What there is.
        longest, largest_batch: What advice may say.
    """

    name: str
    context: int
    batch: int
    trained: int | None
    kv_bytes: int
    peak: int
    budget: MemoryBudget
    longest: int
    largest_batch: int

    @property
    def too_long(self) -> bool:
        """Whether the model was not made for it."""
        return self.trained is not None and self.context > self.trained

    @property
    def fits(self) -> bool:
        """Whether the engine would take it now."""
        return not self.too_long and self.kv_bytes <= self.budget.pages

    @property
    def lasting(self) -> bool:
        """Whether it would if a little less were free."""
        return self.fits and self.kv_bytes <= self.budget.lasting


def verdict(found: Finding) -> str:
    """Whether it fits, with the numbers that decide."""
    one = found.batch == 1
    asked = counted(found.context, "token") if one else _sequences(found.batch, found.context)
    if found.too_long:
        return (
            f"No: {found.name} was made for {counted(found.trained or 0, 'token')}, not for "
            f"{found.context:,}."
        )
    if found.fits:
        takes = (
            f"{found.name} with {asked} takes about {bytes_text(found.peak)} of the "
            f"{bytes_text(found.budget.limit)} that may be used"
        )
        if found.lasting:
            return f"It fits: {takes}."
        return f"It only just fits: {takes} now, and what other programs take changes."
    if not found.budget.pages:
        need, left = need_and_left(found.budget.spoken_for, found.budget.limit)
        return (
            f"It does not fit: {found.name} takes {need} before any context, with what is kept "
            f"free, and {left} may be used."
        )
    need, left = need_and_left(found.kv_bytes, found.budget.pages)
    return (
        f"It does not fit: {found.name} with {asked} needs {need} for its KV cache, and {left} "
        "are left for it."
    )


def largest(found: Finding) -> str:
    """The longest context and the largest batch; "" where `fix` says them."""
    if not found.lasting:
        return ""
    each = f" for each of {found.batch:,} sequences" if found.batch > 1 else ""
    why = " (all that it was made for)" if found.longest == found.trained else ""
    more = "at least " if found.largest_batch == MOST_SEQUENCES else ""
    return (
        f"The most that fits with {TO_SPARE}: {counted(found.longest, 'token')}{each}{why}, or "
        f"{more}{_sequences(found.largest_batch, found.context)} at a time."
    )


def fix(found: Finding) -> str:
    """What to do if it does not fit, or not for sure; "" if nothing."""
    if found.too_long:
        return f"Ask for at most {counted(found.trained or 0, 'token')}."
    if found.lasting:
        return ""
    options = []
    if 0 < found.longest < found.context:
        each = " each" if found.batch > 1 else ""
        options.append(f"for at most {counted(found.longest, 'token')}{each}")
    if 0 < found.largest_batch < found.batch:
        options.append(f"for at most {_sequences(found.largest_batch, found.context)} at a time")
    if options:
        return f"Ask {' or '.join(options)}, with {TO_SPARE}, or close other programs."
    if found.fits:
        return "Close other programs to be sure."
    return "Take a smaller model, or close other programs."


def _sequences(count: int, tokens: int) -> str:
    return f"{counted(count, 'sequence')} of {counted(tokens, 'token')}"
