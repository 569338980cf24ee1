"""Which partitions of attention can be forced: the rule, for whoever asks before a call is planned.

native/plan refuses the others when it plans a call; the tests hold the two against each other.
"""

from __future__ import annotations

import os
import re

from pamx.errors import RequestError

STEP = 16  # of a CPU's kernels; blocks have 8, 16 or 32 tokens


def against_partition(tokens: int, block_size: int) -> str:
    """Why no partition can have so many tokens with blocks of this size, as a clause; else ""."""
    if tokens > 0 and tokens % block_size == 0 and tokens % STEP == 0:
        return ""
    if block_size > STEP:
        return f"with blocks of {block_size} tokens a partition is a multiple of {block_size}"
    return f"a partition is a multiple of {STEP} tokens"


def partition_from_environment(block_size: int) -> int | None:
    """What PAMX_FORCE_PARTITION says, in tokens; None: nothing is forced.

    Raises:
        RequestError: it is no number, or with blocks of this size there is no such partition.
    """
    text = os.environ.get("PAMX_FORCE_PARTITION", "")
    if text and not (re.fullmatch("[0-9]{1,10}", text) and int(text) < 2**31):
        raise RequestError(
            f"PAMX_FORCE_PARTITION is {text!r}, not a number of tokens.", "Correct or unset it."
        )
    tokens = int(text or 0)
    if tokens and (why := against_partition(tokens, max(1, block_size))):
        raise RequestError(f"PAMX_FORCE_PARTITION is {text}, but {why}.", "Correct or unset it.")
    return tokens or None
