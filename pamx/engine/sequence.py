"""One sequence as the scheduler sees it: tokens, pages, and where it stands in line."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pamx.kv.block_table import BlockTable
from pamx.kv.prefix_index import Entry, Key


class Status(enum.Enum):
    WAITING = "waiting"  # holds no pages; computes from the start, or from cached blocks
    RUNNING = "running"  # holds pages
    SWAPPED = "swapped"  # its pages are in a swap tier
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """A prompt and what was generated after it.

    Attributes:
        id: Names the sequence in swap tiers and messages.
        tokens: Token ids that are known.
        prompt_len: How many of them are the prompt.
        max_len: Tokens that it may grow to.
        table: Its pages; `table.num_tokens` tokens are computed or being computed.
        priority: Higher goes first.
        arrival: Order of submission; lower goes first among equals.
        in_flight: Tokens that steps on the device are choosing and the host does not know yet.
        waited: Scheduling rounds spent without pages.
        status: Where it is.
        swapped_tokens: Tokens whose keys and values a swap tier keeps.
        keys: Keys of its full blocks in the prefix cache, as far as they were needed.
        registered: Full blocks that the prefix cache knows of.
        last_registered: The last of them as it has it; None: not known.
        started: Whether it has had pages before.
        cached_tokens: Tokens that were found in the prefix cache when it started.
    """

    id: int
    tokens: list[int]
    prompt_len: int
    max_len: int
    table: BlockTable
    priority: int = 0
    arrival: int = 0
    in_flight: int = 0
    waited: int = 0
    status: Status = Status.WAITING
    swapped_tokens: int = 0
    keys: list[Key] = field(default_factory=list, repr=False)
    registered: int = 0
    last_registered: Entry | None = field(default=None, repr=False)
    started: bool = False
    cached_tokens: int = 0

    @property
    def length(self) -> int:
        """Tokens, the unknown ones included."""
        return len(self.tokens) + self.in_flight

    @property
    def complete(self) -> bool:
        """Whether it has all the tokens that it may have, known or not."""
        return self.length >= self.max_len

    @property
    def to_compute(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return self.length - self.table.num_tokens
