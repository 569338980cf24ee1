"""Prompts of a given length: seeded English-like sentences, so that answers have likely tokens.

Random token ids would leave a model undecided at every token, and the last bit of a sum would
decide which one comes: arms would seem to disagree for no reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_NOUNS = (
    *("river", "engine", "garden", "letter", "window", "bridge", "market", "teacher", "island"),
    *("harbour", "winter", "kitchen", "library", "forest", "train", "captain", "village"),
    *("mountain", "question", "machine", "story", "doctor", "street", "song"),
)
_ADJECTIVES = (
    *("old", "quiet", "green", "heavy", "narrow", "bright", "distant", "careful", "empty"),
    *("simple", "broken", "warm"),
)
_VERBS = (
    *("crossed", "found", "opened", "followed", "described", "repaired", "remembered"),
    *("watched", "left", "drew"),
)
_TIMES = ("In the morning", "After the rain", "Long ago", "That evening", "Every spring", "Later")


def sentences(seed: int, count: int) -> str:
    """`count` sentences, the same ones for the same seed."""
    rng = random.Random(seed)

    def thing() -> str:
        return f"the {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"

    said = [
        f"{rng.choice(_TIMES)} {thing()} {rng.choice(_VERBS)} {thing()} near {thing()}."
        for _ in range(count)
    ]
    return " ".join(said)


def prompt(encode: Callable[[str], list[int]], length: int, seed: int) -> list[int]:
    """Exactly `length` token ids of such text, from its beginning."""
    count = length // 8 + 4
    while len(ids := encode(sentences(seed, count))) < length:
        count *= 2
    return ids[:length]
