"""Which partitions of attention can be forced: the rule, for whoever asks before a call is planned.

native/plan refuses the others when it plans a call; the tests hold the two against each other.
"""

from __future__ import annotations

STEP = 16  # of a CPU's kernels; blocks have 8, 16 or 32 tokens


def against_partition(tokens: int, block_size: int) -> str:
    """Why no partition can have so many tokens with blocks of this size, as a clause; else ""."""
    if tokens > 0 and tokens % block_size == 0 and tokens % STEP == 0:
        return ""
    if block_size > STEP:
        return f"with blocks of {block_size} tokens a partition is a multiple of {block_size}"
    return f"a partition is a multiple of {STEP} tokens"
